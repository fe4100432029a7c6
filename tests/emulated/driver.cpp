// Calls the kernels on generated numbers and writes every result's bytes to stdout, for two processors to be compared.
// Nothing of torch is linked: loops that torch would divide among threads run here, and no tensor is touched.
#include <torch/csrc/stable/c/shim.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "channels/passes.h"
#include "columns/kernels.h"
#include "core/runtime.h"
#include "images/kernels.h"
#include "rows/direct.h"

extern "C" AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t, ParallelFunc function, void* context) {
  function(begin, end, context);
  return 0;
}
extern "C" AOTITorchError torch_get_num_threads(uint32_t* count) {
  *count = 1;
  return 0;
}

namespace evenkeel {
namespace {

constexpr DType floating[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
constexpr const char* dtype_names[] = {"float32", "float64", "bfloat16", "float16", "uint8",
                                       "int8",    "int16",   "uint16",   "int32",   "int64"};

// Numbers in memory, of any dtype.
struct Numbers {
  DType dtype = DType::float32;
  int64_t count = 0;
  std::vector<uint64_t> memory;
  Numbers() = default;
  Numbers(DType type, int64_t n) : dtype(type), count(n), memory(static_cast<size_t>(n * size_of(type) / 8 + 9)) {}
  void* data() { return count ? memory.data() : nullptr; }
  Values values() { return {data(), dtype}; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(memory.data());
  }
};

uint64_t state = 1;
uint64_t random_bits() {  // splitmix64
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Numbers of about `scale` around `shift`, whatever the dtype; 16-bit ones are cut off.
Numbers random(DType dtype, int64_t count, double scale = 1, double shift = 0) {
  Numbers numbers(dtype, count);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = random_bits();
    const double value = (static_cast<double>(bits >> 11) * 0x1p-52 - 1) * scale + shift;
    const float single = static_cast<float>(value);
    uint32_t word;
    std::memcpy(&word, &single, 4);
    switch (dtype) {
      case DType::float32: numbers.as<float>()[i] = single; break;
      case DType::float64: numbers.as<double>()[i] = value; break;
      case DType::bfloat16: numbers.as<uint16_t>()[i] = static_cast<uint16_t>(word >> 16); break;
      case DType::float16:  // an exponent of -9 to 6, and any mantissa
        numbers.as<uint16_t>()[i] = static_cast<uint16_t>((bits & 0x83ff) | ((6 + (bits >> 40) % 16) << 10));
        break;
      default: std::memcpy(numbers.as<char>() + i * size_of(dtype), &bits, size_of(dtype));
    }
  }
  return numbers;
}

void write(const std::string& name, Numbers& numbers) {
  std::printf("%s %s %lld\n", name.c_str(), dtype_names[static_cast<int>(numbers.dtype)],
              static_cast<long long>(numbers.count));
  std::fwrite(numbers.memory.data(), size_of(numbers.dtype), numbers.count, stdout);
}

void require(bool done, const std::string& name) {
  if (done) return;
  std::fprintf(stderr, "%s failed\n", name.c_str());
  std::exit(1);
}

DType opmath(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

// Every bit pattern of 16-bit formats, and floats around what 16-bit formats round and overflow at.
Numbers special(DType dtype) {
  if (size_of(dtype) == 2) {
    Numbers numbers(dtype, 65536);
    for (int64_t i = 0; i < numbers.count; ++i) numbers.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    return numbers;
  }
  Numbers numbers(dtype, 65536 * 3);
  for (int64_t i = 0; i < numbers.count; ++i) {
    const uint32_t word = static_cast<uint32_t>(i / 3) << 16 | (i % 3 == 0 ? 0 : i % 3 == 1 ? 0x8000 : random_bits() & 0xffff);
    float single;
    std::memcpy(&single, &word, 4);
    if (dtype == DType::float32) numbers.as<float>()[i] = single;
    if (dtype == DType::float64) numbers.as<double>()[i] = single;
  }
  return numbers;
}

void run_rows(DType dtype, Statistic statistic, EpsMode mode, int64_t features, double scale, bool with_residual) {
  const int64_t rows = 37;
  const std::string name = "rows " + std::to_string(static_cast<int>(statistic)) + " eps" +
                           std::to_string(static_cast<int>(mode)) + " " + std::to_string(features) + " features of " +
                           std::to_string(scale) + (with_residual ? " residual" : "");
  const DirectRows& direct = *evenkeel_direct_rows();
  const RowsSpec spec{{statistic, 1e-5, mode, 0.5, false, false}, rows, features};
  const int64_t count = rows * features;
  Numbers x = random(dtype, count, scale, scale / 4), dy = random(dtype, count), weight = random(dtype, features);
  Numbers bias = random(dtype, features), y(dtype, count), statistics(opmath(dtype), rows * spec.statistics_width());
  Numbers residual = random(dtype, with_residual ? count : 0, scale), sum(dtype, residual.count);
  const auto layout = [&](Numbers& numbers) {
    return numbers.count ? Rows{numbers.data(), dtype, RowLayout{1, {rows}, {features}}} : Rows();
  };
  RowsForward forward{.spec = spec};
  forward.x = layout(x);
  forward.residual = layout(residual);
  forward.sum = layout(sum);
  forward.y = layout(y);
  forward.statistics = statistics.data();
  require(direct.forward(forward, weight.values(), bias.values()), name);
  Numbers dx(dtype, count), dweight(dtype, features), dbias(dtype, features);
  RowsBackward backward{.spec = spec};
  backward.dy = layout(dy);
  backward.x = layout(with_residual ? sum : x);
  backward.dx = layout(dx);
  backward.statistics = statistics.data();
  require(direct.backward(backward, weight.values(), {}, dweight.values(), dbias.values()), name);
  for (Numbers* each : {&y, &sum, &statistics, &dx, &dweight, &dbias}) write(name, *each);
}

void run_channels(DType dtype, const ChannelsShape& shape, int64_t groups, Activation activation, bool masked,
                  bool remembered, double scale) {
  const std::string name = "channels " + std::to_string(shape.batch) + "x" + std::to_string(shape.channels) + "x" +
                           std::to_string(shape.positions) + (shape.last ? " last" : "") + " groups" +
                           std::to_string(groups) + " act" + std::to_string(static_cast<int>(activation)) +
                           (masked ? " masked" : "") + (remembered ? " remembered" : "") + " of " +
                           std::to_string(scale);
  const int64_t count = shape.batch * shape.channels * shape.positions;
  const ChannelsOptions options = resolved({groups, 1e-5, EpsMode::inside, 0, activation}, shape.channels, remembered);
  const int64_t statistics_count = statistics_of(shape, options.groups);
  const DirectChannels& direct = *evenkeel_direct_channels();
  Numbers x = random(dtype, count, scale, scale / 4), dy = random(dtype, count), y(dtype, count), dx(dtype, count);
  Numbers weight = random(dtype, shape.channels, 1, 1), bias = random(dtype, shape.channels);
  Numbers mean = random(opmath(dtype), remembered ? shape.channels : 0, scale);
  Numbers variance = random(opmath(dtype), mean.count, scale * scale / 4, scale * scale / 2);
  Numbers statistics(opmath(dtype), statistics_count * statistics_width(options.eps_mode));
  Numbers variances(opmath(dtype), statistics_count), dweight(dtype, shape.channels), dbias(dtype, shape.channels);
  Numbers mask(DType::uint8, masked ? shape.batch * shape.positions : 0);
  for (int64_t i = 0; i < mask.count; ++i) mask.as<uint8_t>()[i] = random_bits() % 3 != 0;
  ChannelsForward forward{};
  forward.shape = shape;
  forward.dtype = dtype;
  forward.options = options;
  forward.x = x.data();
  forward.y = y.data();
  forward.weight = weight.values();
  forward.bias = bias.values();
  forward.mean = mean.values();
  forward.variance = variance.values();
  forward.mask = static_cast<const uint8_t*>(mask.data());
  forward.statistics = statistics.data();
  forward.variances = variances.data();
  require(direct.forward(forward), name);
  const ChannelsBackward backward{shape,       dtype,          options,      remembered,       x.data(),
                                  dy.data(),   dx.data(),      weight.values(), bias.values(), forward.mask,
                                  statistics.data(), dweight.values(), dbias.values()};
  require(direct.backward(backward), name);
  for (Numbers* each : {&y, &statistics, &variances, &dx, &dweight, &dbias}) write(name, *each);
}

void run_columns(DType dtype, int64_t columns, bool weighted) {
  const int64_t rows = 1000, fold = columns <= 64 ? 16 / std::gcd(columns, int64_t{16}) : 1;
  const std::string name = "columns " + std::to_string(columns) + (weighted ? " weighted" : "");
  Numbers x = random(dtype, rows * columns, 100, 7), shift(DType::float64, columns);
  Numbers weight = random(DType::float64, weighted ? rows : 0, 0.5, 0.5), sums(DType::float64, sums_count * columns);
  if (is_floating(dtype)) std::memcpy(x.as<char>() + 3 * size_of(dtype), special(dtype).as<char>() + 0x7f80 * 2, 64);
  const ColumnStream stream{dtype,   x.data(), static_cast<const double*>(weight.data()), shift.as<double>(), rows,
                            columns, columns,  1, fold, 128 * fold};
  const ColumnSumKernels& kernels = EVENKEEL_BEST(column_sum_kernels);
  kernels.find_shift(stream, shift.as<double>());
  kernels.sum(stream, 0, rows, sums.as<double>());
  write(name + " shift", shift);
  write(name + " sums", sums);
}

// The map of every number to every format, with parameters that leave numbers alone and others.
void run_map(DType from, DType to, bool identical) {
  Numbers x = is_floating(from) ? special(from) : random(from, 4096);
  const int64_t period = 48;
  Numbers shift = random(DType::float64, period + 16), scale = random(DType::float64, period + 16, 1, 2), y(to, x.count);
  Numbers offset = random(DType::float64, period + 16);
  for (Numbers* each : {&shift, &scale, &offset}) {
    for (int64_t i = 0; i < period + 16; ++i) {
      double* const p = each->as<double>();
      p[i] = identical ? (each == &scale ? 1.0 : each == &shift ? 0.0 : -0.0) : p[i % period];
    }
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const ColumnMap map{from, to, shift.as<double>(), scale.as<double>(), offset.as<double>(), period, !identical,
                      -infinity, 40, false};
  const ColumnMapKernel kernel = EVENKEEL_BEST(column_map_kernel);
  kernel(map, x.data(), y.data(), x.count, 0);
  write(std::string("map from ") + dtype_names[static_cast<int>(from)] + (identical ? " as it is" : ""), y);
}

void run_images(DType from, DType to, bool together) {
  constexpr int64_t channels = 3, pixels = 1003;
  Numbers x = random(from, channels * pixels, 1, 1), y(to, channels * pixels);
  Numbers mean = random(DType::float64, channels, 0.1, 0.5), std = random(DType::float64, channels, 0.05, 0.25);
  ByteAffine forms[channels];
  ImageMap map{from, to, together ? channels : 1, together ? 1 : pixels, pixels, 255, mean.as<double>(),
               std.as<double>(), nullptr, false};
  const ImagesKernels& kernels = EVENKEEL_BEST(images_kernels);
  if (from == DType::uint8 && to != DType::float64 && kernels.find_affine(map, channels, forms)) map.bytes = forms;
  kernels.normalize(map, x.data(), y.data(), pixels, 0, channels);
  write(std::string("images from ") + dtype_names[static_cast<int>(from)] + (map.bytes ? " by table" : ""), y);
}

void run_all() {
  for (DType dtype : floating) {
    for (int64_t features : {1, 7, 16, 77, 768, 1003}) {
      for (Statistic statistic : {Statistic::rms, Statistic::moments, Statistic::l2}) {
        for (EpsMode mode : {EpsMode::inside, EpsMode::outside, EpsMode::clamp}) {
          run_rows(dtype, statistic, mode, features, 1, mode == EpsMode::outside);
        }
        // squares of these leave float's range
        for (double scale : {1e-24, 1e24}) run_rows(dtype, statistic, EpsMode::inside, features, scale, false);
      }
    }
    const ChannelsShape shapes[] = {{3, 12, 49, false},  {2, 8, 4100, false}, {20, 32, 9, false}, {2, 64, 1, false},
                                    {33, 16, 36, false}, {3, 12, 49, true},   {4, 96, 16, true},  {2, 520, 5, true}};
    for (const ChannelsShape& shape : shapes) {
      for (int64_t groups : {int64_t{0}, int64_t{1}, int64_t{4}, each_channel}) {
        for (Activation act : {Activation::none, Activation::relu, Activation::silu}) {
          run_channels(dtype, shape, groups, act, false, false, 1);
        }
        run_channels(dtype, shape, groups, Activation::none, true, false, 1);
        run_channels(dtype, shape, groups, Activation::none, false, false, 1e24);
      }
      for (Activation act : {Activation::none, Activation::silu}) run_channels(dtype, shape, 0, act, false, true, 1);
    }
    for (int from = 0; from < 10; ++from) {
      for (bool identical : {true, false}) run_map(static_cast<DType>(from), dtype, identical);
    }
    for (DType from : {DType::uint8, DType::float32, DType::float16, DType::int16}) {
      for (bool together : {true, false}) run_images(from, dtype, together);
    }
  }
  for (int type = 0; type < 10; ++type) {
    for (int64_t columns : {1, 3, 17, 70, 1024}) {
      for (bool weighted : {false, true}) run_columns(static_cast<DType>(type), columns, weighted);
    }
  }
}

}  // namespace
}  // namespace evenkeel

int main() {
  std::fprintf(stderr, "%s\n", evenkeel::simd_level().c_str());
  evenkeel::run_all();
}
