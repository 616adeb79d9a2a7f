// Job, submit and probe of fastload._native._core: every argument is checked here, and the caller's buffers
// are kept alive for as long as a job writes into them.
#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "batch.h"
#include "bindings.h"
#include "cut_short.h"
#include "files.h"
#include "pool.h"

namespace fastload {
namespace {

// Waits in slices, so that Ctrl-C is heard.
void wait_for(Job& job) {
  constexpr std::chrono::milliseconds kSlice(100);
  for (;;) {
    pool::Wait outcome;
    {
      WithoutGil released;
      outcome = pool::wait(job, kSlice);
    }
    if (outcome == pool::Wait::kDone) return;
    if (outcome == pool::Wait::kForked) {
      throw std::runtime_error(
          "this job was submitted before the process forked and was not finished: submit it again in this "
          "process");
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// fastload._native._core.Job
class PyJob {
 public:
  PyJob(std::shared_ptr<Batch> batch, py::object files, std::vector<Buffer> written)
      : batch_(std::move(batch)), files_(std::move(files)), written_(std::move(written)) {}
  ~PyJob() { cancel(); }
  PyJob(const PyJob&) = delete;
  PyJob& operator=(const PyJob&) = delete;

  void wait() { wait_for(*batch_); }
  void cancel() {
    if (batch_->done()) return;
    WithoutGil released;
    pool::cancel(*batch_);
  }
  bool done() const { return batch_->done(); }
  const std::shared_ptr<Batch>& batch() const { return batch_; }
  bool begun() const { return begun_; }
  void begin() { begun_ = true; }
  void keep_alive(std::vector<py::object> others) { others_ = std::move(others); }
  py::dict nanoseconds() const {
    const Stages& stages = batch_->stages();
    py::dict result;
    result["read"] = stages.read.load(std::memory_order_relaxed);
    result["check"] = stages.check.load(std::memory_order_relaxed);
    result["decode"] = stages.decode.load(std::memory_order_relaxed);
    result["resize"] = stages.resize.load(std::memory_order_relaxed);
    result["augment"] = stages.augment.load(std::memory_order_relaxed);
    return result;
  }

 private:
  std::shared_ptr<Batch> batch_;
  py::object files_;             // owns the arrays that the core's Files borrows
  std::vector<Buffer> written_;  // what the batch writes into
  std::vector<py::object> others_;
  bool begun_ = false;
};

std::string at(const char* name, size_t i) {
  return std::string(name) + ": sample " + std::to_string(i) + ": ";
}

void require(bool fits, const char* name, size_t i, const char* expected) {
  if (!fits) throw py::value_error(at(name, i) + "expected " + expected);
}

// Coordinates within this keep every sum of two of them inside 32 bits.
constexpr int32_t kMaxCoordinate = 1 << 24;

// Whether a side is longer than the resampler takes. Such a sample is for Pillow, and not looked at further.
bool is_large(const Sample& s) {
  const auto sides = {s.source_w, s.source_h, s.box_w, s.box_h, s.resized_w, s.resized_h};
  return std::max(sides) > kMaxSide;
}

void check_sample(const Sample& s, size_t i, size_t files) {
  require(s.file >= 0 && static_cast<size_t>(s.file) < files, "file", i, "an index of files");
  require(s.offset >= 0, "offset", i, "a value of 0 or more");
  require(s.nbytes >= -1, "nbytes", i, "a length, or -1 for up to the end");
  require(static_cast<int>(s.kind) < kKinds, "kind", i, "0 (encoded), 1 (raw), 2 (DCT) or 3 (turned)");
  if (s.large) return;
  require(s.source_w >= 0 && s.source_h >= 0, "size", i, "0 (unknown) or more");
  require((s.source_w == 0) == (s.source_h == 0), "size", i, "width and height, or neither");
  require(s.box_x >= 0 && s.box_y >= 0 && s.box_w >= 1 && s.box_h >= 1 && s.box_x <= kMaxSide &&
              s.box_y <= kMaxSide,
          "box", i, "x, y of 0 up to 65,535 and w, h of 1 or more");
  require(s.source_w == 0 || (s.box_x + s.box_w <= s.source_w && s.box_y + s.box_h <= s.source_h), "box", i,
          "a box inside the image");
  require(s.resized_w >= 1 && s.resized_h >= 1, "resized", i, "1 or more");
  require(s.window_x >= -kMaxCoordinate && s.window_x <= kMaxCoordinate && s.window_y >= -kMaxCoordinate &&
              s.window_y <= kMaxCoordinate,
          "window", i, "coordinates within 2**24 of 0");
}

}  // namespace

Output make_output(int out_h, int out_w, int dtype, bool channels_last, int filter, int order,
                   const py::sequence& fill, const py::object& lut) {
  if (out_h < 1 || out_w < 1 || out_h > kMaxSide || out_w > kMaxSide) {
    throw py::value_error("out_h, out_w: expected 1 up to 65,535");
  }
  if (dtype < 0 || dtype > 3) {
    throw py::value_error("dtype: expected 0 (uint8), 1 (float32), 2 (float16) or 3 (bfloat16)");
  }
  if (filter < 0 || filter >= kFilters) throw py::value_error("filter: expected 0 up to 7, see resample.h");
  if (order < 0 || order > 2) throw py::value_error("order: expected 0 to 2, see PassOrder in resample.h");
  if (py::len(fill) != 3) throw py::value_error("fill: expected three levels");
  Output output{};
  output.dtype = static_cast<Dtype>(dtype);
  output.out_w = out_w;
  output.out_h = out_h;
  output.channels = 3;
  output.channels_last = channels_last;
  output.filter = static_cast<Filter>(filter);
  output.order = static_cast<PassOrder>(order);
  for (size_t c = 0; c < 3; c++) {
    const int level = fill[c].cast<int>();
    if (level < 0 || level > 255) throw py::value_error("fill: expected levels from 0 to 255");
    output.fill[c] = static_cast<uint8_t>(level);
  }
  if (!lut.is_none()) {
    const py::ssize_t wanted = static_cast<py::ssize_t>(3 * 256 * dtype_nbytes(output.dtype));
    const Buffer table = read_array(lut, "lut", 'u', 1, wanted);
    output.lut.assign(table.data<uint8_t>(), table.data<uint8_t>() + wanted);
  } else if (output.dtype != Dtype::kUint8) {
    throw py::value_error("lut: expected a table, for only uint8 can go without");
  }
  return output;
}

namespace {

// Lets `batch` fill the batches of `views` too: jobs that were not begun, and a region for each sample.
void lead(const py::object& views, py::ssize_t n, Batch* batch, PyJob* job) {
  const py::tuple both(views);
  if (both.size() != 2) throw py::value_error("views: expected jobs and their regions");
  std::vector<py::object> jobs;
  for (const py::handle& each : py::list(both[0])) jobs.push_back(py::reinterpret_borrow<py::object>(each));
  const Buffer array = read_array(both[1], "views", 'i', 4, n, 4);
  std::vector<std::shared_ptr<Batch>> others;
  for (const py::object& each : jobs) {
    const auto& other = each.cast<const PyJob&>();
    if (other.batch()->count() != n || other.begun()) {
      throw py::value_error("views: expected jobs of as many samples that were not begun");
    }
    others.push_back(other.batch());
  }
  std::vector<Region> regions(static_cast<size_t>(n));
  for (size_t i = 0; i < regions.size(); i++) {
    const int32_t* r = array.data<int32_t>() + 4 * i;
    regions[i] = {r[0], r[1], r[2], r[3]};
    if (r[2] == 0) continue;
    if (std::max({r[0], r[1], r[2], r[3]}) >
        kMaxSide) {  // views of an image with so long a side are Pillow's
      regions[i] = Region{};
      continue;
    }
    require(r[0] >= 0 && r[1] >= 0 && r[2] >= 1 && r[3] >= 1, "views", i, "a region in pixels");
    require(batch->within(i, regions[i]), "views", i, "a region inside the image that holds the box");
    for (const auto& other : others) {
      require(other->within(i, regions[i]), "views", i, "a region that holds the box of each view");
    }
  }
  batch->lead(std::move(others), std::move(regions));
  job->keep_alive(jobs);
}

// What is remembered of the records: a table, and their numbers in it. It looks up no others.
void remember(const py::object& entries, py::ssize_t n, Batch* batch) {
  const py::tuple both(entries);
  if (both.size() != 2) throw py::value_error("entries: expected a table and the records' numbers");
  const Buffer array = read_array(both[1], "entries", 'i', 8, n);
  const int64_t* const records = array.data<int64_t>();
  batch->remember(both[0].cast<std::shared_ptr<EntryTable>>(), {records, records + n});
}

std::unique_ptr<PyJob> submit(const py::object& files, const py::object& file, const py::object& offset,
                              const py::object& nbytes, const py::object& kind, const py::object& size,
                              const py::object& checksum, const py::object& check, const py::object& box,
                              const py::object& resized, const py::object& window, const py::object& flip,
                              const py::object& out, const py::object& lut, int out_h, int out_w, int dtype,
                              bool channels_last, int filter, int order, const py::sequence& fill,
                              const py::object& status, const py::object& detail, int threads,
                              const py::object& times, const py::object& stages, const py::object& erase,
                              const std::shared_ptr<Keep>& keep, int channels, bool scaled, bool begin,
                              const py::object& views, const py::object& entries) {
  const std::shared_ptr<Files> core = core_of(files);
  if (threads < 0) throw py::value_error("threads: expected 0 or more, got " + std::to_string(threads));
  const Buffer file_array(file, "file", 'i', 4, false);
  const py::ssize_t n = file_array.length();
  file_array.expect_shape("file", n);
  const Buffer offset_array = read_array(offset, "offset", 'i', 8, n);
  const Buffer nbytes_array = read_array(nbytes, "nbytes", 'i', 8, n);
  const Buffer kind_array = read_array(kind, "kind", 'u', 1, n);
  const Buffer size_array = read_array(size, "size", 'i', 4, n, 2);
  const Buffer box_array = read_array(box, "box", 'i', 4, n, 4);
  const Buffer resized_array = read_array(resized, "resized", 'i', 4, n, 2);
  const Buffer window_array = read_array(window, "window", 'i', 4, n, 2);
  const Buffer flip_array = read_array(flip, "flip", 'u', 1, n);
  if (checksum.is_none() && !check.is_none())
    throw py::value_error("check: expected None where checksum is None");
  const Buffer checksum_array = checksum.is_none() ? Buffer() : read_array(checksum, "checksum", 'u', 4, n);
  const Buffer check_array = check.is_none() ? Buffer() : read_array(check, "check", 'u', 1, n);

  Output output = make_output(out_h, out_w, dtype, channels_last, filter, order, fill, lut);
  Buffer out_array(out, "out", 'u', 1, true);
  if (channels != 1 && channels != 3) throw py::value_error("channels: expected 1 or 3");
  output.channels = channels;
  // 3 * 2^32 * 4 bytes a sample at most, and n is bounded by what the arrays hold: 128 bits are safe.
  const __int128 wanted =
      static_cast<__int128>(n) * channels * out_h * out_w * static_cast<int>(dtype_nbytes(output.dtype));
  if (out_array.ndim() != 1 || wanted != out_array.nbytes()) {
    throw py::value_error("out: expected one dimension of n * channels * out_h * out_w * itemsize = " +
                          std::to_string(static_cast<long long>(wanted)) + " bytes, got " +
                          std::to_string(out_array.nbytes()));
  }
  output.data = out_array.data<uint8_t>();
  output.scaled = scaled;
  std::vector<uint8_t> large(static_cast<size_t>(n));
  Recipe recipe = make_recipe(stages, n, out_w, out_h, large.data());
  Erasing erasing = make_erasing(erase, n, output);
  Buffer status_array = write_array(status, "status", n);
  Buffer detail_array = write_array(detail, "detail", n);
  static_assert(sizeof(Times) == 7 * sizeof(int64_t));
  Buffer times_array = times.is_none() ? Buffer() : write_array(times, "times", n, 7, 8);
  auto* const clock = times.is_none() ? nullptr : reinterpret_cast<Times*>(times_array.data<int64_t>());

  if (keep && keep->samples.size() != static_cast<size_t>(n)) {
    throw py::value_error("keep: expected one made for " + std::to_string(n) + " samples, got " +
                          std::to_string(keep->samples.size()));
  }

  // Copied, so that nothing the caller does to the arrays later escapes the checks.
  std::vector<Sample> samples(static_cast<size_t>(n));
  for (size_t i = 0; i < samples.size(); i++) {
    Sample& s = samples[i];
    s.file = file_array.data<int32_t>()[i];
    s.offset = offset_array.data<int64_t>()[i];
    s.nbytes = nbytes_array.data<int64_t>()[i];
    s.kind = static_cast<Kind>(kind_array.data<uint8_t>()[i]);
    s.source_w = size_array.data<int32_t>()[2 * i];
    s.source_h = size_array.data<int32_t>()[2 * i + 1];
    s.checksum = checksum.is_none() ? 0 : checksum_array.data<uint32_t>()[i];
    s.check = !checksum.is_none() && (check.is_none() || check_array.data<uint8_t>()[i] != 0);
    const int32_t* b = box_array.data<int32_t>() + 4 * i;
    s.box_x = b[0];
    s.box_y = b[1];
    s.box_w = b[2];
    s.box_h = b[3];
    s.resized_w = resized_array.data<int32_t>()[2 * i];
    s.resized_h = resized_array.data<int32_t>()[2 * i + 1];
    s.window_x = window_array.data<int32_t>()[2 * i];
    s.window_y = window_array.data<int32_t>()[2 * i + 1];
    s.flip = flip_array.data<uint8_t>()[i] != 0;
    s.large = large[i] || is_large(s) || (keep && keep->samples[i].large);
    check_sample(s, i, core->count());
  }
  for (size_t i = 0; i < samples.size(); i++) {
    status_array.data<int32_t>()[i] = static_cast<int32_t>(Status::kPending);
    detail_array.data<int32_t>()[i] = 0;
  }
  auto batch = std::make_shared<Batch>(core, std::move(samples), std::move(output), std::move(recipe),
                                       std::move(erasing), status_array.data<int32_t>(),
                                       detail_array.data<int32_t>(), clock, threads, keep);
  std::vector<Buffer> written;
  for (Buffer* each : {&out_array, &status_array, &detail_array, &times_array}) {
    written.push_back(std::move(*each));
  }
  auto job = std::make_unique<PyJob>(batch, files, std::move(written));
  if (!views.is_none()) lead(views, n, batch.get(), job.get());
  if (!entries.is_none()) remember(entries, n, batch.get());
  if (begin) {
    job->begin();
    Watched::install();  // others may have put their handler of bus errors in our place
    pool::submit(batch);
  }
  return job;
}

void probe(const py::object& files, const py::object& file, const py::object& offset,
           const py::object& nbytes, const py::object& kind, const py::object& size_out,
           const py::object& status, int threads) {
  const std::shared_ptr<Files> core = core_of(files);
  if (threads < 0) throw py::value_error("threads: expected 0 or more, got " + std::to_string(threads));
  const Buffer file_array(file, "file", 'i', 4, false);
  const py::ssize_t n = file_array.length();
  file_array.expect_shape("file", n);
  const Buffer offset_array = read_array(offset, "offset", 'i', 8, n);
  const Buffer nbytes_array = read_array(nbytes, "nbytes", 'i', 8, n);
  const Buffer kind_array = read_array(kind, "kind", 'u', 1, n);
  const Buffer size_array = write_array(size_out, "size_out", n, 2);
  const Buffer status_array = write_array(status, "status", n);
  std::vector<ProbeSample> samples(static_cast<size_t>(n));
  for (size_t i = 0; i < samples.size(); i++) {
    ProbeSample& s = samples[i];
    s.file = file_array.data<int32_t>()[i];
    s.offset = offset_array.data<int64_t>()[i];
    s.nbytes = nbytes_array.data<int64_t>()[i];
    s.kind = static_cast<Kind>(kind_array.data<uint8_t>()[i]);
    require(s.file >= 0 && static_cast<size_t>(s.file) < core->count(), "file", i, "an index of files");
    require(s.offset >= 0, "offset", i, "a value of 0 or more");
    require(s.nbytes >= -1, "nbytes", i, "a length, or -1 for up to the end");
    require(static_cast<int>(s.kind) < kKinds, "kind", i, "0 (encoded), 1 (raw), 2 (DCT) or 3 (turned)");
  }
  for (size_t i = 0; i < samples.size(); i++) {
    status_array.data<int32_t>()[i] = static_cast<int32_t>(Status::kPending);
  }
  auto job = std::make_shared<Probe>(core, std::move(samples), size_array.data<int32_t>(),
                                     status_array.data<int32_t>(), threads);
  pool::submit(job);
  try {
    wait_for(*job);
  } catch (const std::exception&) {
    WithoutGil released;
    pool::cancel(*job);
    throw;
  }
}

}  // namespace

void bind_batches(py::module_& m) {
  using namespace pybind11::literals;
  py::class_<PyJob>(m, "Job", "A submitted batch. Dropped before its end, it is cancelled.")
      .def("wait", &PyJob::wait,
           "Return when every sample has its status. Other Python threads run meanwhile.")
      .def("cancel", &PyJob::cancel, "Drop unstarted samples (status -1) and wait for running ones.")
      .def_property_readonly("done", &PyJob::done, "True once no sample is left and no thread at work.")
      .def_property_readonly("nanoseconds", &PyJob::nanoseconds, "Time per stage, summed over threads.");

  m.def("submit", &submit, "files"_a, "file"_a, "offset"_a, "nbytes"_a, "kind"_a, "size"_a, "checksum"_a,
        "check"_a, "box"_a, "resized"_a, "window"_a, "flip"_a, "out"_a, "lut"_a, py::kw_only(), "out_h"_a,
        "out_w"_a, "dtype"_a, "channels_last"_a, "filter"_a, "order"_a, "fill"_a, "status"_a, "detail"_a,
        "threads"_a, "times"_a = py::none(), "stages"_a = py::none(), "erase"_a = py::none(),
        "keep"_a = py::none(), "channels"_a = 3, "scaled"_a = false, "begin"_a = true, "views"_a = py::none(),
        "entries"_a = py::none(), "Start filling a batch; see _core.pyi.");
  m.def("probe", &probe, "files"_a, "file"_a, "offset"_a, "nbytes"_a, "kind"_a, "size_out"_a, "status"_a,
        "threads"_a, "Read image sizes out of headers; see _core.pyi.");
}

}  // namespace fastload
