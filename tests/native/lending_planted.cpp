// A bug that must be caught: one_shot lends its input in place, and the first rank to have its result writes it where others still read.
#include "lent_programs.h"

using namespace ringcomm;
using namespace ringcomm::test;

int main() {
  start("lending_planted", 120);
  on_ranks(
      3, [](int n, int r) { return one_shot_lending(n, r, Lend::always); },
      [](LentRank& rank, int) {
        std::vector<Chunk> data = rank.chunks(1, kPieceElements * 20, true);
        for (int k = 0; k < 50; ++k) {
          rank.set_inputs(data);
          to_end(*rank.start(data, data));
        }
      });
  return 0;
}
