// SHA-256 and HMAC against the published vectors.
#include "core/hmac.h"

#include <string>
#include <vector>

#include "check.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

std::string hex(const Digest& d) {
  std::string text;
  for (uint8_t b : d) text += "0123456789abcdef"[b >> 4], text += "0123456789abcdef"[b & 15];
  return text;
}

std::string sha(const std::string& data) { return hex(Sha256().add(data.data(), data.size()).end()); }
std::string mac(const std::string& key, const std::string& data) {
  return hex(Hmac(key.data(), key.size()).add(data.data(), data.size()).end());
}

// RFC 6234, section 8.5: the vectors that are whole bytes, with their repeat counts.
void rfc_6234() {
  CHECK_EQ(sha(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(sha("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(sha(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  std::string repeated;
  for (int i = 0; i < 10; ++i) repeated += "0123456701234567012345670123456701234567012345670123456701234567";
  CHECK_EQ(sha(repeated), "594847328451bdfa85056225462cc1d867d877fb388df0ce35f25ab5562bfbb5");
  CHECK_EQ(sha("\x19"), "68aa2e2ee5dff96e3355e6c7ee373e3d6a4e17f75f9518d843709c0c9bc3e3d4");
}

// RFC 4231, section 4; case 5 is of a cut-off value.
void rfc_4231() {
  CHECK_EQ(mac(std::string(20, '\x0b'), "Hi There"),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQ(mac("Jefe", "what do ya want for nothing?"),
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQ(mac(std::string(20, '\xaa'), std::string(50, '\xdd')),
           "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char c = 1; c <= 25; ++c) counting += c;
  CHECK_EQ(mac(counting, std::string(50, '\xcd')), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK_EQ(mac(std::string(20, '\x0c'), "Test With Truncation").substr(0, 32), "a3b6167473100ee06e0c796c2955552b");
  CHECK_EQ(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK_EQ(mac(std::string(131, '\xaa'),
               "This is a test using a larger than block-size key and a larger than block-size data. The key needs to "
               "be hashed before being used by the HMAC algorithm."),
           "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

// However the bytes come, and at every length around the block's border.
void in_pieces() {
  for (size_t bytes = 0; bytes < 200; ++bytes) {
    const std::string data(bytes, 'x');
    Sha256 pieces;
    for (size_t at = 0, n = 1; at < bytes; at += n, n = n % 7 + 1)
      pieces.add(data.data() + at, std::min(n, bytes - at));
    CHECK_EQ(hex(pieces.end()), sha(data));
  }
}

void comparison() {
  Digest a{}, b{};
  CHECK(equal(a, b));
  for (size_t i = 0; i < a.size(); ++i) {
    b = a, b[i] ^= 1;
    CHECK(!equal(a, b));
  }
}

}  // namespace

int main() {
  start("hmac_test", 60);
  section("SHA-256, RFC 6234");
  rfc_6234();
  section("HMAC, RFC 4231");
  rfc_4231();
  section("in pieces");
  in_pieces();
  section("comparison");
  comparison();
  return 0;
}
