// Job, submit and probe of fastload._native._core. Checks every argument, and keeps the caller's buffers
// alive for as long as a job writes to them.
#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "batch/batch.h"
#include "batch/pool.h"
#include "bindings/module.h"
#include "io/files.h"
#include "io/sigbus_guard.h"

namespace fastload {
namespace {

// Waits in slices, so that Ctrl-C works.
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
  PyJob(std::shared_ptr<BatchJob> batch, py::object files, std::vector<Buffer> written)
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
  int64_t cpu_ns() const { return batch_->cpu_ns(); }
  const std::shared_ptr<BatchJob>& batch() const { return batch_; }
  bool started() const { return started_; }
  void mark_started() { started_ = true; }
  void keep_alive(std::vector<py::object> others) { others_ = std::move(others); }
  py::dict nanoseconds() const {
    const StageTimes& stages = batch_->stages();
    py::dict result;
    result["read"] = stages.read.load(std::memory_order_relaxed);
    result["check"] = stages.check.load(std::memory_order_relaxed);
    result["decode"] = stages.decode.load(std::memory_order_relaxed);
    result["resize"] = stages.resize.load(std::memory_order_relaxed);
    result["augment"] = stages.augment.load(std::memory_order_relaxed);
    return result;
  }

 private:
  std::shared_ptr<BatchJob> batch_;
  py::object files_;             // owns the arrays that the core's Files borrows
  std::vector<Buffer> written_;  // the arrays that the batch writes to
  std::vector<py::object> others_;
  bool started_ = false;
};

// Whether a side is longer than the resampler allows, or the source has more than `most_pixels`. Pillow
// decodes such a sample; the core ignores it.
bool is_large(const Sample& s, int64_t most_pixels) {
  const auto sides = {s.source_w, s.source_h, s.box_w, s.box_h, s.resized_w, s.resized_h};
  return std::max(sides) > kMaxSide || int64_t{s.source_w} * s.source_h > most_pixels;
}

// The same of what is to be cached, which is not what the sample is made from.
bool is_large(const CacheFillSample& s, int64_t most_pixels) {
  return s.large || int64_t{s.source_w} * s.source_h > most_pixels;
}

void check_kind(Kind kind, size_t i) {
  require(static_cast<int>(kind) < kKinds, "kind", i, "0 (encoded), 1 (raw), 2 (DCT) or 3 (turned)");
}

void check_sample(const Sample& s, size_t i) {
  check_kind(s.kind, i);
  if (s.large) return;
  require(s.source_w >= 0 && s.source_h >= 0, "size", i, "0 (unknown) or more");
  require((s.source_w == 0) == (s.source_h == 0), "size", i, "width and height, or neither");
  require(s.box_x >= 0 && s.box_y >= 0 && s.box_w >= 1 && s.box_h >= 1 && s.box_x <= kMaxSide &&
              s.box_y <= kMaxSide,
          "box", i, "x, y of 0 up to 65,535 and w, h of 1 or more");
  require(s.source_w == 0 || (s.box_x + s.box_w <= s.source_w && s.box_y + s.box_h <= s.source_h), "box", i,
          "a box inside the image");
  require(s.resized_w >= 1 && s.resized_h >= 1, "resized", i, "1 or more");
  require(is_coordinate(s.window_x) && is_coordinate(s.window_y), "window", i,
          "coordinates within 2**24 of 0");
}

// Makes `batch` fill the batches of `views` too: jobs that were not started, and a region for each sample.
void set_views(const py::object& views, py::ssize_t n, BatchJob* batch, PyJob* job) {
  const py::tuple parts(views);
  if (parts.size() != 2) throw py::value_error("views: expected jobs and their regions");
  std::vector<py::object> jobs;
  for (const py::handle& each : py::list(parts[0])) jobs.push_back(py::reinterpret_borrow<py::object>(each));
  const Buffer array = read_array(parts[1], "views", 'i', 4, n, 4);
  std::vector<std::shared_ptr<BatchJob>> others;
  for (const py::object& each : jobs) {
    const auto& other = each.cast<const PyJob&>();
    if (other.batch()->count() != n || other.started()) {
      throw py::value_error("views: expected jobs of as many samples, submitted with begin=False");
    }
    others.push_back(other.batch());
  }
  std::vector<Region> regions(static_cast<size_t>(n));
  for (size_t i = 0; i < regions.size(); i++) {
    const int32_t* r = array.data<int32_t>() + 4 * i;
    regions[i] = {r[0], r[1], r[2], r[3]};
    if (r[2] == 0) continue;
    if (std::max({r[0], r[1], r[2], r[3]}) > kMaxSide) {  // Pillow makes the views of such an image
      regions[i] = Region{};
      continue;
    }
    require(r[0] >= 0 && r[1] >= 0 && r[2] >= 1 && r[3] >= 1, "views", i, "a region in pixels");
    require(batch->contains_box(i, regions[i]), "views", i,
            "a region inside the image that contains the box");
    for (const auto& other : others) {
      require(other->contains_box(i, regions[i]), "views", i, "a region that contains the box of each view");
    }
  }
  batch->set_views(std::move(others), std::move(regions));
  job->keep_alive(jobs);
}

// `entries` of a BatchSpec: an EntryTable, and the row of each sample there.
void use_entry_points(const py::object& entries, py::ssize_t n, BatchJob* batch) {
  const py::tuple parts(entries);
  if (parts.size() != 2) throw py::value_error("entries: expected a table and the records' numbers");
  const Buffer array = read_array(parts[1], "entries", 'i', 8, n);
  const int64_t* const records = array.data<int64_t>();
  batch->use_entry_points(parts[0].cast<std::shared_ptr<EntryTable>>(), {records, records + n});
}

// What the core is asked for: fields that Python sets by name, described in _core.pyi. submit() checks them.
struct BatchSpec {
  // The same for each batch of a kernel.
  int dtype = 0, channels = 3, filter = 0, order = 0;
  bool channels_last = false, scaled = false;
  py::object fill = py::make_tuple(0, 0, 0), lut = py::none(), values = py::none();
  // Of one batch.
  py::object file = py::none(), offset = py::none(), nbytes = py::none(), kind = py::none();
  py::object size = py::none(), checksum = py::none(), check = py::none();
  py::object box = py::none(), resized = py::none(), window = py::none(), flip = py::none();
  py::object out = py::none(), rows = py::none(), status = py::none(), detail = py::none(),
             times = py::none();
  py::object stages = py::none(), erase = py::none(), filters = py::none();
  py::object entries = py::none(), views = py::none();
  std::shared_ptr<CacheFill> cache_fill;
  int out_h = 1, out_w = 1, threads = 0;
  bool begin = true;
  int64_t most_pixels = std::numeric_limits<int64_t>::max();
};

// The settings that all samples share, checked; `data` is not set. ValueError or TypeError name the argument.
BatchOutput output_of(const BatchSpec& spec) {
  if (spec.out_h < 1 || spec.out_w < 1) throw py::value_error("out_h, out_w: expected 1 or more");
  if (spec.dtype < 0 || spec.dtype > 3) {
    throw py::value_error("dtype: expected 0 (uint8), 1 (float32), 2 (float16) or 3 (bfloat16)");
  }
  check_filter(spec.filter);
  check_pass_order(spec.order);
  const py::sequence fill(spec.fill);
  if (py::len(fill) != 3) throw py::value_error("fill: expected three levels");
  if (spec.channels != 1 && spec.channels != 3) throw py::value_error("channels: expected 1 or 3");
  BatchOutput output{};
  output.dtype = static_cast<Dtype>(spec.dtype);
  output.out_w = spec.out_w;
  output.out_h = spec.out_h;
  output.channels = spec.channels;
  output.channels_last = spec.channels_last;
  output.filter = static_cast<Filter>(spec.filter);
  output.order = static_cast<PassOrder>(spec.order);
  for (size_t c = 0; c < 3; c++) {
    const int level = fill[c].cast<int>();
    if (level < 0 || level > 255) throw py::value_error("fill: expected levels from 0 to 255");
    output.fill[c] = static_cast<uint8_t>(level);
  }
  if (!spec.lut.is_none()) {
    const py::ssize_t wanted = static_cast<py::ssize_t>(3 * 256 * dtype_nbytes(output.dtype));
    const Buffer table = read_array(spec.lut, "lut", 'u', 1, wanted);
    output.lut.assign(table.data<uint8_t>(), table.data<uint8_t>() + wanted);
  } else if (output.dtype != Dtype::kUint8) {
    throw py::value_error("lut: expected a table, because only uint8 needs none");
  }
  return output;
}

std::unique_ptr<PyJob> submit(const py::object& files, const BatchSpec& spec) {
  const std::shared_ptr<Files> core = core_of(files);
  if (spec.threads < 0)
    throw py::value_error("threads: expected 0 or more, got " + std::to_string(spec.threads));
  const SpanArrays spans(spec.file, spec.offset, spec.nbytes);
  const py::ssize_t n = spans.count();
  const Buffer kind_array = read_array(spec.kind, "kind", 'u', 1, n);
  const Buffer size_array = read_array(spec.size, "size", 'i', 4, n, 2);
  const Buffer box_array = read_array(spec.box, "box", 'i', 4, n, 4);
  const Buffer resized_array = read_array(spec.resized, "resized", 'i', 4, n, 2);
  const Buffer window_array = read_array(spec.window, "window", 'i', 4, n, 2);
  const Buffer flip_array = read_array(spec.flip, "flip", 'u', 1, n);
  const bool summed = !spec.checksum.is_none(), chosen = !spec.check.is_none();
  if (!summed && chosen) throw py::value_error("check: expected None where checksum is None");
  const Buffer checksum_array = !summed ? Buffer() : read_array(spec.checksum, "checksum", 'u', 4, n);
  const Buffer check_array = !chosen ? Buffer() : read_array(spec.check, "check", 'u', 1, n);
  const Buffer filter_array =
      spec.filters.is_none() ? Buffer() : read_array(spec.filters, "filters", 'u', 1, n);

  const int out_h = spec.out_h, out_w = spec.out_w, channels = spec.channels;
  BatchOutput output = output_of(spec);
  Buffer out_array(spec.out, "out", 'u', 1, true);
  // 3 * 2^62 * 4 bytes per sample at most, and the arrays limit n: 128 bits cannot overflow.
  const __int128 row =
      static_cast<__int128>(channels) * out_h * out_w * static_cast<int>(dtype_nbytes(output.dtype));
  const bool placed = !spec.rows.is_none();
  const Buffer rows_array = placed ? read_array(spec.rows, "rows", 'i', 8, n) : Buffer();
  if (out_array.ndim() != 1 || (placed ? out_array.nbytes() % row : out_array.nbytes() - n * row) != 0) {
    throw py::value_error("out: expected one dimension of n * channels * out_h * out_w * itemsize = " +
                          std::to_string(static_cast<long long>(n * row)) + " bytes, got " +
                          std::to_string(out_array.nbytes()));
  }
  output.data = out_array.data<uint8_t>();
  output.scaled = spec.scaled;
  std::vector<uint8_t> large(static_cast<size_t>(n), std::max(out_w, out_h) > kMaxSide);
  SampleParams params = make_sample_params(spec.stages, n, out_w, out_h, large.data());
  set_value_resize(spec.values, output, &params);
  Erasing erasing = make_erasing(spec.erase, n, output);
  Buffer status_array = written_array(spec.status, "status", 'i', 4, n);
  Buffer detail_array = written_array(spec.detail, "detail", 'i', 4, n);
  static_assert(sizeof(SampleTimes) == 7 * sizeof(int64_t));
  Buffer times_array = spec.times.is_none() ? Buffer() : written_array(spec.times, "times", 'i', 8, n, 7);
  auto* const clock =
      spec.times.is_none() ? nullptr : reinterpret_cast<SampleTimes*>(times_array.data<int64_t>());

  if (spec.cache_fill && spec.cache_fill->samples.size() != static_cast<size_t>(n)) {
    throw py::value_error("cache_fill: expected one made for " + std::to_string(n) + " samples, got " +
                          std::to_string(spec.cache_fill->samples.size()));
  }

  // Copied, so that later changes by the caller cannot bypass the checks.
  std::vector<Sample> samples(static_cast<size_t>(n));
  for (size_t i = 0; i < samples.size(); i++) {
    Sample& s = samples[i];
    spans.check(i, core->count());
    s.file = spans.file(i);
    s.offset = spans.offset(i);
    s.nbytes = spans.nbytes(i);
    s.kind = static_cast<Kind>(kind_array.data<uint8_t>()[i]);
    s.source_w = size_array.data<int32_t>()[2 * i];
    s.source_h = size_array.data<int32_t>()[2 * i + 1];
    s.checksum = !summed ? 0 : checksum_array.data<uint32_t>()[i];
    s.check = summed && (!chosen || check_array.data<uint8_t>()[i] != 0);
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
    s.filter = output.filter;
    if (!spec.filters.is_none()) {
      check_filter(filter_array.data<uint8_t>()[i]);
      s.filter = static_cast<Filter>(filter_array.data<uint8_t>()[i]);
    }
    s.row = placed ? rows_array.data<int64_t>()[i] : static_cast<int64_t>(i);
    require(s.row >= 0 && s.row < out_array.nbytes() / row, "rows", i, "a row of out");
    s.large = large[i] || is_large(s, spec.most_pixels) ||
              (spec.cache_fill && is_large(spec.cache_fill->samples[i], spec.most_pixels));
    check_sample(s, i);
  }
  for (size_t i = 0; i < samples.size(); i++) {
    status_array.data<int32_t>()[i] = static_cast<int32_t>(Status::kPending);
    detail_array.data<int32_t>()[i] = 0;
  }
  auto batch = std::make_shared<BatchJob>(core, std::move(samples), std::move(output), std::move(params),
                                          std::move(erasing), status_array.data<int32_t>(),
                                          detail_array.data<int32_t>(), clock, spec.threads, spec.cache_fill);
  std::vector<Buffer> written;
  for (Buffer* each : {&out_array, &status_array, &detail_array, &times_array}) {
    written.push_back(std::move(*each));
  }
  auto job = std::make_unique<PyJob>(batch, files, std::move(written));
  if (!spec.views.is_none()) set_views(spec.views, n, batch.get(), job.get());
  if (!spec.entries.is_none()) use_entry_points(spec.entries, n, batch.get());
  if (spec.begin) {
    job->mark_started();
    SigbusGuard::install();  // another library may have replaced our handler of bus errors
    pool::submit(batch);
  }
  return job;
}

void probe(const py::object& files, const py::object& file, const py::object& offset,
           const py::object& nbytes, const py::object& kind, const py::object& size_out,
           const py::object& status, int threads) {
  const std::shared_ptr<Files> core = core_of(files);
  if (threads < 0) throw py::value_error("threads: expected 0 or more, got " + std::to_string(threads));
  const SpanArrays spans(file, offset, nbytes);
  const py::ssize_t n = spans.count();
  const Buffer kind_array = read_array(kind, "kind", 'u', 1, n);
  const Buffer size_array = written_array(size_out, "size_out", 'i', 4, n, 2);
  const Buffer status_array = written_array(status, "status", 'i', 4, n);
  std::vector<ProbeSample> samples(static_cast<size_t>(n));
  for (size_t i = 0; i < samples.size(); i++) {
    ProbeSample& s = samples[i];
    spans.check(i, core->count());
    s.file = spans.file(i);
    s.offset = spans.offset(i);
    s.nbytes = spans.nbytes(i);
    s.kind = static_cast<Kind>(kind_array.data<uint8_t>()[i]);
    check_kind(s.kind, i);
  }
  for (size_t i = 0; i < samples.size(); i++) {
    status_array.data<int32_t>()[i] = static_cast<int32_t>(Status::kPending);
  }
  auto job = std::make_shared<ProbeJob>(core, std::move(samples), size_array.data<int32_t>(),
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
  py::class_<PyJob>(m, "Job", "A submitted batch. Dropping it before its end cancels it.")
      .def("wait", &PyJob::wait, "Return when every sample has its status; releases the GIL.")
      .def("cancel", &PyJob::cancel, "Drop unstarted samples (status -1) and wait for running ones.")
      .def_property_readonly("done", &PyJob::done, "Whether every sample is finished.")
      .def_property_readonly("cpu_ns", &PyJob::cpu_ns, "CPU time of the pool's threads.")
      .def_property_readonly("nanoseconds", &PyJob::nanoseconds, "Time per stage, summed over threads.");

  using Field = py::object BatchSpec::*;
  using Number = int BatchSpec::*;
  using Flag = bool BatchSpec::*;
  py::class_<BatchSpec> spec(m, "BatchSpec", "What the core is asked for; see _core.pyi.");
  spec.def(py::init<>()).def(py::init<const BatchSpec&>(), "other"_a);
  const std::pair<const char*, Field> fields[] = {
      {"fill", &BatchSpec::fill},       {"lut", &BatchSpec::lut},       {"values", &BatchSpec::values},
      {"file", &BatchSpec::file},       {"offset", &BatchSpec::offset}, {"nbytes", &BatchSpec::nbytes},
      {"kind", &BatchSpec::kind},       {"size", &BatchSpec::size},     {"checksum", &BatchSpec::checksum},
      {"check", &BatchSpec::check},     {"box", &BatchSpec::box},       {"resized", &BatchSpec::resized},
      {"window", &BatchSpec::window},   {"flip", &BatchSpec::flip},     {"out", &BatchSpec::out},
      {"status", &BatchSpec::status},   {"detail", &BatchSpec::detail}, {"times", &BatchSpec::times},
      {"stages", &BatchSpec::stages},   {"erase", &BatchSpec::erase},   {"filters", &BatchSpec::filters},
      {"entries", &BatchSpec::entries}, {"views", &BatchSpec::views},   {"rows", &BatchSpec::rows}};
  const std::pair<const char*, Number> numbers[] = {
      {"dtype", &BatchSpec::dtype},    {"channels", &BatchSpec::channels}, {"filter", &BatchSpec::filter},
      {"order", &BatchSpec::order},    {"out_h", &BatchSpec::out_h},       {"out_w", &BatchSpec::out_w},
      {"threads", &BatchSpec::threads}};
  const std::pair<const char*, Flag> flags[] = {{"channels_last", &BatchSpec::channels_last},
                                                {"scaled", &BatchSpec::scaled},
                                                {"begin", &BatchSpec::begin}};
  for (const auto& [name, field] : fields) spec.def_readwrite(name, field);
  for (const auto& [name, field] : numbers) spec.def_readwrite(name, field);
  for (const auto& [name, field] : flags) spec.def_readwrite(name, field);
  spec.def_readwrite("cache_fill", &BatchSpec::cache_fill);
  spec.def_readwrite("most_pixels", &BatchSpec::most_pixels);
  m.def("submit", &submit, "files"_a, "spec"_a, "Start filling a batch; see _core.pyi.");
  m.def("probe", &probe, "files"_a, "file"_a, "offset"_a, "nbytes"_a, "kind"_a, "size_out"_a, "status"_a,
        "threads"_a, "Read image sizes from headers; see _core.pyi.");
}

}  // namespace fastload
