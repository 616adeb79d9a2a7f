// Writes damaged and made-up PNG files, and other damaged files, one after the other. Built and run by
// tests/hostile.py:
//
//   mutate SEED COUNT OUT FILE...
//
// OUT.data: the files. OUT.ends: where each ends, as uint64.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "png_mutations.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  generator.seed(std::strtoull(argv[1], nullptr, 10));
  const long count = std::strtol(argv[2], nullptr, 10);
  std::vector<Bytes> originals = read_files(argv + 4, argc - 4);
  if (originals.empty()) return 2;
  Corpus corpus(std::move(originals));
  const std::string out = argv[3];
  std::ofstream data(out + ".data", std::ios::binary), ends(out + ".ends", std::ios::binary);
  uint64_t end = 0;
  for (long i = 0; i < count; i++) {
    const Bytes bytes = corpus.next();
    data.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    end += bytes.size();
    ends.write(reinterpret_cast<const char*>(&end), sizeof end);
  }
  data.close();
  ends.close();
  return data && ends ? 0 : 1;
}
