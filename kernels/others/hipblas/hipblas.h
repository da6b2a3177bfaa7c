// hipBLAS for sources that are compiled for their kernels alone: the host's side is declared, and does nothing.
#pragma once

using hipblasHandle_t = void*;

enum hipblasStatus_t {
    HIPBLAS_STATUS_SUCCESS, HIPBLAS_STATUS_NOT_INITIALIZED, HIPBLAS_STATUS_ALLOC_FAILED, HIPBLAS_STATUS_INVALID_VALUE,
    HIPBLAS_STATUS_MAPPING_ERROR, HIPBLAS_STATUS_EXECUTION_FAILED, HIPBLAS_STATUS_INTERNAL_ERROR,
    HIPBLAS_STATUS_NOT_SUPPORTED, HIPBLAS_STATUS_ARCH_MISMATCH,
};
enum hipblasOperation_t { HIPBLAS_OP_N, HIPBLAS_OP_T, HIPBLAS_OP_C };

template <typename... Arguments>
hipblasStatus_t hipblasCreate(Arguments...) { return HIPBLAS_STATUS_SUCCESS; }
template <typename... Arguments>
hipblasStatus_t hipblasDestroy(Arguments...) { return HIPBLAS_STATUS_SUCCESS; }
template <typename... Arguments>
hipblasStatus_t hipblasSetStream(Arguments...) { return HIPBLAS_STATUS_SUCCESS; }
template <typename... Arguments>
hipblasStatus_t hipblasSetMathMode(Arguments...) { return HIPBLAS_STATUS_SUCCESS; }
