// The part of DLPack 1.3 by which a tensor's memory is seen from C. torch's own copy of the standard's header cannot be
// included where its stable ABI alone is used.
#pragma once

#include <cstdint>

namespace evenkeel::dlpack {

constexpr uint32_t major_version = 1, minor_version_of_exchange = 3;
constexpr int32_t cpu = 1;
constexpr uint8_t ieee_float = 2, bfloat = 4;

struct Version {
  uint32_t major, minor;
};

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct TensorView {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  DataType dtype;
  int64_t* sizes;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct ManagedTensor;

struct ExchangeHeader {
  Version version;
  ExchangeHeader* previous;
};

struct Exchange {
  ExchangeHeader header;
  int (*allocate)(TensorView* prototype, ManagedTensor** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensor** out);
  int (*object_from_managed)(ManagedTensor* tensor, void** object);
  // The view lives as long as the object. 0, or another number with a Python exception set.
  int (*view_of_object)(void* object, TensorView* out);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // namespace evenkeel::dlpack
