// The Python surface: a group seed, the backend, the process's engine and log. Thin; ringcomm/_C.pyi documents it.
#include <pybind11/chrono.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <torch/extension.h>

#include "c10d/backend.h"
#include "c10d/device_watch.h"
#include "c10d/devices.h"
#include "c10d/flight_dump.h"
#include "c10d/registered.h"
#include "connections/verbs_net.h"
#include "core/log.h"
#include "engine/process.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

[[noreturn]] void raise(const Error& error) { throw std::runtime_error(error.text); }

constexpr long kLastCallNs = 500'000'000;  // for a callback to unwind

// Set once from Python, leaked: a program may be asked for until the interpreter is gone.
PyObject* builder = nullptr;

std::vector<int32_t> build_program(Collective collective, const std::string& schedule, int ranks, int rank, int root,
                                   int slots, std::string& error) {
  const py::gil_scoped_acquire gil;
  try {
    TORCH_INTERNAL_ASSERT(builder != nullptr);
    const py::object table =
        py::reinterpret_borrow<py::object>(builder)(name(collective), schedule, ranks, rank, root, slots);
    const auto words = py::cast<py::array_t<int32_t, py::array::c_style | py::array::forcecast>>(table);
    return {words.data(), words.data() + words.size()};
  } catch (const std::exception& e) {
    error = "schedule '" + schedule + "' cannot be built for " + name(collective) + ": " + e.what();
    return {};
  }
}

// Python hands over the seed once; the backend then owns it.
struct SeedHandle {
  std::unique_ptr<GroupSeed> seed;
};

std::unique_ptr<SeedHandle> make_seed(int rank, int ranks, int channels, uint32_t slots, size_t fan_out, size_t pair,
                                      size_t message) {
  Engine* engine = process_engine();
  if (!engine)
    throw std::runtime_error(forked() ? "ringcomm: groups cannot be made in a forked child of a process that has some"
                                      : "ringcomm: the engine was not started");
  ShmLayout layout;
  layout.ranks = ranks, layout.channels = channels, layout.slots = slots;
  layout.fan_out_capacity = fan_out, layout.pair_capacity = pair, layout.message_capacity = message;
  Error error;
  auto handle = std::make_unique<SeedHandle>();
  handle->seed = GroupSeed::make(*engine, rank, layout, error);
  if (!handle->seed) raise(error);
  return handle;
}

py::dict card_of(const SeedHandle& handle) {
  const PeerCard card = handle.seed->card();
  py::dict d;
  d["socket"] = card.socket, d["offer"] = card.nonce, d["process"] = card.process, d["pid"] = card.pid;
  return d;
}

// `found` of a backend: a Python callable(store or None, name, rank, numbers, timeout). Whoever drops the last copy may not hold Python's lock,
// and the interpreter may be gone by then.
Found founder(const py::object& callable) {
  const std::shared_ptr<py::object> keep(new py::object(callable), [](py::object* o) {
    if (!Py_IsInitialized()) {
      (void)o->release();
    } else {
      const py::gil_scoped_acquire gil;
      *o = py::object();
    }
    delete o;
  });
  return [keep](const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
                const std::vector<int>& numbers, std::chrono::milliseconds timeout) {
    const py::gil_scoped_acquire gil;
    return py::cast<c10::intrusive_ptr<Backend>>((*keep)(store, name, rank, numbers, timeout));
  };
}

using RuleTuple = std::tuple<int, std::optional<uint64_t>, std::string, size_t, int, std::string, bool>;

c10::intrusive_ptr<Backend> make_backend(SeedHandle& handle, const std::string& name,
                                         const std::vector<std::map<std::string, py::object>>& cards,
                                         const std::vector<RuleTuple>& rules, int64_t spin_ns, int yields,
                                         std::chrono::milliseconds timeout, const py::object& found,
                                         const std::string& record_to, bool over_verbs) {
  GroupSpec spec;
  spec.name = name;
  spec.over_verbs = over_verbs;
  if (over_verbs && (!process_engine() || !process_engine()->verbs()))
    throw std::runtime_error("ringcomm: verbs were not opened");
  if (!record_to.empty()) {
    spec.on_failure = [record_to] { write_flight_record_on_failure(record_to); };
    process_engine()->watch_boards();
  }
  spec.caller = {spin_ns, yields};
  for (const auto& [collective, max_bytes, schedule, slot, channels, source, wide] : rules)
    spec.rules.at(static_cast<size_t>(collective))
        .push_back({max_bytes.value_or(UINT64_MAX), schedule, slot, channels, source, wide});
  std::vector<PeerCard> peers;
  for (const auto& c : cards) {
    PeerCard card{py::cast<std::string>(c.at("socket")),
                  py::cast<std::string>(c.at("offer")),
                  py::cast<std::string>(c.at("process")),
                  py::cast<std::string>(c.at("host")),
                  py::cast<int>(c.at("pid")),
                  py::cast<int>(c.at("rank"))};
    if (const auto node = c.find("node"); node != c.end()) card.node = py::cast<int>(node->second);
    if (const auto at = c.find("addresses"); at != c.end())
      card.addresses = py::cast<std::vector<std::string>>(at->second);
    if (const auto rails = c.find("rails"); rails != c.end()) card.rails = py::cast<int>(rails->second);
    peers.push_back(std::move(card));
  }
  set_flight_rank(peers.at(static_cast<size_t>(handle.seed->rank())).global_rank);
  const ShmLayout layout = handle.seed->layout();
  spec.build = [ranks = layout.ranks, rank = handle.seed->rank(), slots = static_cast<int>(layout.slots)](
                   Collective collective, const std::string& schedule, int root, std::string& error) {
    return build_program(collective, schedule, ranks, rank, root, slots, error);
  };
  std::exception_ptr signal;  // what a signal handler raised: Ctrl-C
  spec.interrupted = [&signal] {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return false;
    signal = std::make_exception_ptr(py::error_already_set());
    return true;
  };
  Found founds = founder(found);
  const py::gil_scoped_release nogil;
  Error error;
  CommunicatorPtr group = handle.seed->connect(std::move(spec), peers, after_ms(timeout.count()), error);
  if (signal) std::rethrow_exception(signal);
  if (!group) raise(error);
  return c10::make_intrusive<Backend>(std::move(handle.seed), std::move(group), timeout, std::move(founds));
}

void start_heap(size_t limit) {
  Error error;
  if (!start_process_heap(limit, error)) raise(error);
}

py::object heap_numbers() {
  const Heap* heap = process_heap();
  if (heap == nullptr) return py::none();
  py::dict d;
  d["limit"] = heap->limit(), d["used"] = heap->used(), d["kept"] = heap->kept();
  return d;
}

void start_engine(int workers, int64_t spin_ns, int yields, size_t memory_limit) {
  EngineOptions options;
  options.workers = workers;
  options.driver = {spin_ns, yields};
  options.memory_limit = memory_limit;
  Error error;
  if (!start_process_engine(options, error)) raise(error);
}

int open_port(const std::vector<std::string>& bind, int port_low, int port_high, const std::string& key,
              std::chrono::nanoseconds dead_after) {
  Engine* engine = process_engine();
  if (!engine) throw std::runtime_error("ringcomm: the engine was not started");
  TcpOptions options;
  options.bind = bind;
  options.port_low = port_low, options.port_high = port_high;
  options.key = key;
  Error error;
  const py::gil_scoped_release nogil;
  if (!engine->open_port(options, dead_after.count(), error)) raise(error);
  return engine->port()->port();
}

const VerbsLibrary& library_of_verbs() {
  std::string why_not;
  const VerbsLibrary* library = verbs_library(why_not);
  if (library == nullptr) throw std::runtime_error(why_not);
  return *library;
}

py::list verbs_ports() {
  std::string why_not;
  std::vector<VerbsPortFacts> found;
  {
    const py::gil_scoped_release nogil;
    found = list_verbs_ports(library_of_verbs(), why_not);
  }
  if (found.empty()) throw std::runtime_error(why_not);
  py::list all;
  for (const VerbsPortFacts& f : found) {
    py::dict d;
    d["device"] = f.device, d["port"] = f.port, d["active"] = f.active, d["ethernet"] = f.ethernet, d["lid"] = f.lid,
    d["mtu"] = f.mtu;
    all.append(d);
  }
  return all;
}

py::list open_verbs(const std::vector<std::tuple<std::string, int, int>>& rails, int traffic_class, int service_level,
                    int pkey_index, int timeout, int retry_count) {
  Engine* engine = process_engine();
  if (!engine || !engine->port()) throw std::runtime_error("ringcomm: the TCP port was not opened");
  VerbsOptions options;
  for (const auto& [device, port, gid_index] : rails) options.rails.push_back({device, port, gid_index});
  options.traits = {static_cast<uint8_t>(traffic_class), static_cast<uint8_t>(service_level),
                    static_cast<uint16_t>(pkey_index), static_cast<uint8_t>(timeout),
                    static_cast<uint8_t>(retry_count)};
  {
    const py::gil_scoped_release nogil;
    Error error;
    if (!engine->open_verbs(library_of_verbs(), options, error)) raise(error);
  }
  py::list all;
  for (int rail = 0; rail < engine->verbs()->rails(); ++rail) {
    const VerbsDevice& device = engine->verbs()->device(rail);
    py::dict d;
    d["name"] = device.name(), d["ethernet"] = device.ethernet(), d["lid"] = device.lid(),
    d["mtu"] = 128 << device.mtu();
    d["gid"] = gid_text(device.gid().gid), d["gid_index"] = device.gid_index();
    d["gid_kind"] = gid_kind(device.gid().gid_type);
    all.append(d);
  }
  return all;
}

// Interpreter exit. A callback that still runs Python code gets SystemExit: left alone, its thread would be ended by the interpreter in the midst of
// C++ frames (Python below 3.14), which aborts the process.
void stop_engine() {
  Engine* engine = process_engine();
  if (!engine) return;
  {
    const py::gil_scoped_release nogil;
    DeviceWatch::process().stop();
    stop_process_engine();
  }
  const std::vector<unsigned long> busy = engine->callbacks().busy();
  for (unsigned long thread : busy) PyThreadState_SetAsyncExc(thread, PyExc_SystemExit);
  const py::gil_scoped_release nogil;
  if (!busy.empty()) engine->callbacks().stop(kLastCallNs);
}

void take_device_type(const std::string& type, const std::string& driver, const std::string& kernels,
                      const std::string& missing, int blocks, unsigned threads, const std::string& warning) {
  take_devices(c10::Device(type).type(), {driver, kernels, missing, blocks, threads, warning});
}

py::dict layout_numbers() {
  py::dict d;
  d["program_magic"] = kProgramMagic, d["program_version"] = kProgramVersion, d["collectives"] = kCollectives,
  d["opcodes"] = kOpcodes;
  d["header_words"] = sizeof(ProgramHeader) / 4, d["step_words"] = sizeof(PackedStep) / 4,
  d["connection_words"] = sizeof(PackedConnection) / 4;
  d["inline_bytes"] = kInlineBytes;
  return d;
}

// "" if the table is a legal program, else what is wrong.
std::string check_program(const py::array_t<int32_t, py::array::c_style | py::array::forcecast>& table) {
  Program program;
  return Program::load(table.data(), static_cast<size_t>(table.size()), program);
}

}  // namespace
}  // namespace ringcomm

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace ringcomm;
  m.doc() = "The data plane of ringcomm.";
  py::class_<SeedHandle>(m, "Seed").def("card", &card_of);
  m.def("seed", &make_seed, py::arg("rank"), py::arg("ranks"), py::arg("channels"), py::arg("slots"),
        py::arg("fan_out"), py::arg("pair"), py::arg("message"));
  py::class_<BackendOptions, c10::intrusive_ptr<BackendOptions>, c10d::Backend::Options>(m, "BackendOptions")
      .def("__deepcopy__",
           [](const BackendOptions& o, const py::dict&) { return c10::make_intrusive<BackendOptions>(o); });
  py::class_<Backend, c10::intrusive_ptr<Backend>, c10d::Backend>(m, "Backend")
      .def_property_readonly("options", &Backend::getBackendOptions)
      .def_property_readonly("connection_kind", &Backend::connection_kind)
      .def("get_error", &Backend::getError)
      .def("perform_nocolor_split", [](Backend&, const py::object&) {})
      .def("_set_default_timeout", &Backend::setTimeout, py::call_guard<py::gil_scoped_release>());
  m.def("backend", &make_backend, py::arg("seed"), py::arg("name"), py::arg("cards"), py::arg("rules"),
        py::arg("spin_ns"), py::arg("yields"), py::arg("timeout"), py::arg("found"), py::arg("record_to"),
        py::arg("over_verbs"));
  m.def("start_engine", &start_engine, py::arg("workers"), py::arg("spin_ns"), py::arg("yields"),
        py::arg("memory_limit"), py::call_guard<py::gil_scoped_release>());
  m.def("open_port", &open_port, py::arg("bind"), py::arg("port_low"), py::arg("port_high"), py::arg("key"),
        py::arg("dead_after"));
  m.def("verbs_ports", &verbs_ports);
  m.def("open_verbs", &open_verbs, py::arg("rails"), py::arg("traffic_class"), py::arg("service_level"),
        py::arg("pkey_index"), py::arg("timeout"), py::arg("retry_count"));
  m.def("stop_engine", &stop_engine);
  m.def("take_devices", &take_device_type, py::arg("type"), py::arg("driver"), py::arg("kernels"), py::arg("missing"),
        py::arg("blocks"), py::arg("threads"), py::arg("warning"));
  m.def("start_heap", &start_heap, py::arg("limit"));
  m.def("heap_numbers", &heap_numbers);
  m.def("registered_empty",
        [](const std::vector<int64_t>& sizes, at::ScalarType dtype) { return registered_empty(sizes, dtype); });
  m.def("is_registered", &is_registered);
  m.def("serve_cpu_memory", [](std::optional<size_t> min_bytes) { serve_cpu_memory(min_bytes.value_or(SIZE_MAX)); });
  m.def("set_builder", [](const py::object& callable) { builder = py::object(callable).release().ptr(); });
  m.def("set_log", [](int level, const std::string& file, const std::string& prefix) {
    return set_log(static_cast<LogLevel>(level), file, prefix);
  });
  m.def("log", [](int level, const std::string& line) { log(static_cast<LogLevel>(level), line); });
  m.def("start_flight_record", &start_flight_record, py::arg("capacity"));
  m.def("flight_record", [](bool messages) { return py::bytes(pickled_flight_record(messages)); }, py::arg("messages"));
  m.def("flight_rank", &flight_rank);
  m.def("layout_numbers", &layout_numbers);
  m.def("check_program", &check_program);
  m.def("memory_used", [] { return process_engine() ? process_engine()->budget().used() : 0; });
  m.def("moves", &moves, py::arg("dtype"));
  m.def("reduce_ops", &reduce_ops, py::arg("dtype"));
  m.def("reduce_isa", [] { return std::string(reduce_isa()); });
}
