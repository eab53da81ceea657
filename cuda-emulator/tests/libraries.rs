//! The stand-ins for NVIDIA's libraries, by what is documented of these.

mod common;

use std::ffi::c_void;
use std::ptr::{from_ref, null_mut};

use common::{Device, device, numbers};
use cudarc::cublaslt::{result, sys};
use cudarc::cudnn;
use cudarc::driver::{CudaSlice, DevicePtr};

/// The device, and the libraries.
fn with_libraries() -> Option<Device> {
    nn_cuda_emulator::libraries_installed_or_skip().then(device)?
}

fn address(slice: &CudaSlice<f32>, device: &Device) -> u64 {
    slice.device_ptr(&device.stream).0
}

const SINGLE: sys::cudaDataType_t = sys::cudaDataType_t::CUDA_R_32F;

/// A product with the algorithm that the heuristic names first for these reductions.
struct Product {
    handle: sys::cublasLtHandle_t,
    description: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Product {
    /// Of matrices of so many rows, columns and values from one column to the next.
    fn new(
        attributes: &[(sys::cublasLtMatmulDescAttributes_t, u64)],
        sizes: [(u64, u64, i64); 3],
        reductions: u32,
        workspace: u64,
    ) -> Result<Self, result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
        use sys::cublasLtMatmulPreferenceAttributes_t::*;
        let handle = result::create_handle()?;
        let description = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, SINGLE)?;
        for (attribute, value) in attributes {
            let bytes = if *attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER { 8 } else { 4 };
            // SAFETY: the value has at least so many bytes, the lower ones first.
            unsafe {
                result::set_matmul_desc_attribute(description, *attribute, from_ref(value).cast(), bytes)?
            };
        }
        let layouts = sizes
            .map(|(rows, cols, stride)| result::create_matrix_layout(SINGLE, rows, cols, stride).unwrap());
        let preference = result::create_matmul_pref()?;
        let [a, b, d] = layouts;
        // SAFETY: all of it exists, and values have the types of their attributes.
        let found = unsafe {
            let set = |attribute, value: *const c_void, bytes| {
                result::set_matmul_pref_attribute(preference, attribute, value, bytes)
            };
            set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, from_ref(&reductions).cast(), 4)?;
            set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, from_ref(&workspace).cast(), 8)?;
            for attribute in [
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                set(attribute, from_ref(&4_u32).cast(), 4)?;
            }
            result::get_matmul_algo_heuristic(handle, description, a, b, d, d, preference)?
        };
        Ok(Self { handle, description, layouts, algorithm: found.algo })
    }

    fn run(
        &self,
        device: &Device,
        beta: f32,
        [a, b, d, workspace]: [u64; 4],
        bytes: usize,
    ) -> Result<(), result::CublasError> {
        let [la, lb, ld] = self.layouts;
        // SAFETY: all of it exists; the emulator looks at how far operands reach.
        unsafe {
            result::matmul(
                self.handle,
                self.description,
                from_ref(&2.0_f32).cast(),
                from_ref(&beta).cast(),
                a as *const c_void,
                la,
                b as *const c_void,
                lb,
                d as *const c_void,
                ld,
                d as *mut c_void,
                ld,
                &self.algorithm,
                workspace as *mut c_void,
                bytes,
                device.stream.cu_stream().cast(),
            )
        }
    }
}

#[test]
fn products_are_of_column_major_matrices_with_an_epilogue() {
    use sys::cublasLtMatmulDescAttributes_t::*;
    let Some(device) = with_libraries() else { return };
    // D of 2 by 3, A of 2 by 4 with 5 values a column, and B transposed, of 3 by 4.
    let (a, b, before, bias) = (numbers(20, 1), numbers(12, 2), numbers(6, 3), numbers(2, 4));
    let upload = |values: &[f32]| device.stream.clone_htod(values).unwrap();
    let (x, y, z, w) = (upload(&a), upload(&b), upload(&before), upload(&bias));
    let attributes = [
        (CUBLASLT_MATMUL_DESC_TRANSB, 1),
        (CUBLASLT_MATMUL_DESC_EPILOGUE, 6),
        (CUBLASLT_MATMUL_DESC_BIAS_POINTER, address(&w, &device)),
    ];
    let product = Product::new(&attributes, [(2, 4, 5), (3, 4, 3), (2, 3, 2)], 0, 0).unwrap();
    let operands = [address(&x, &device), address(&y, &device), address(&z, &device), 0];
    product.run(&device, 0.5, operands, 0).unwrap();
    let found = device.stream.clone_dtoh(&z).unwrap();
    for (i, j) in (0..2).flat_map(|i| (0..3).map(move |j| (i, j))) {
        let sum: f32 = (0..4).map(|k| a[5 * k + i] * b[3 * k + j]).sum();
        let expected = (2.0 * sum + 0.5 * before[2 * j + i] + bias[i]).max(0.0);
        assert!((found[2 * j + i] - expected).abs() < 1e-5, "{i}, {j}: {found:?}");
    }
}

#[test]
fn parts_that_are_added_in_place_differ_from_run_to_run_and_others_do_not() {
    let Some(device) = with_libraries() else { return };
    let upload = |values: &[f32]| device.stream.clone_htod(values).unwrap();
    let (x, y) = (upload(&numbers(900, 1)), upload(&numbers(900, 2)));
    let run = |reductions, workspace: u64| {
        let product =
            Product::new(&[], [(3, 300, 3), (300, 3, 300), (3, 3, 3)], reductions, workspace).unwrap();
        let room = device.stream.alloc_zeros::<f32>(64).unwrap();
        let all = [(); 4].map(|()| {
            let z = device.stream.alloc_zeros::<f32>(9).unwrap();
            let operands = [&x, &y, &z, &room].map(|slice| address(slice, &device));
            product.run(&device, 0.0, operands, 256).unwrap();
            device.stream.clone_dtoh(&z).unwrap()
        });
        all.iter().all(|bits| *bits == all[0])
    };
    assert!(!run(7, 256), "in place, which the default allows");
    assert!(run(2, 256), "in the workspace");
    assert!(run(2, 0), "not at all");
}

#[test]
fn what_is_not_known_is_not_supported() {
    use sys::cublasLtMatmulDescAttributes_t::*;
    let Some(_device) = with_libraries() else { return };
    let sizes = [(2, 4, 2), (4, 3, 4), (2, 3, 2)];
    for attributes in [[(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1)], [(CUBLASLT_MATMUL_DESC_EPILOGUE, 32)]] {
        let error = Product::new(&attributes, sizes, 0, 0).map(drop).unwrap_err();
        assert_eq!(error.0, sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
    }
    for sizes in
        [[(2, 4, 1), sizes[1], sizes[2]], [(2, 5, 2), sizes[1], sizes[2]], [sizes[0], sizes[1], (3, 3, 3)]]
    {
        let error = Product::new(&[], sizes, 0, 0).map(drop).unwrap_err();
        assert_eq!(error.0, sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
    }
    let tensor = cudnn::result::create_tensor_descriptor().unwrap();
    let (nhwc, single) =
        (cudnn::sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC, cudnn::sys::cudnnDataType_t::CUDNN_DATA_FLOAT);
    // SAFETY: the tensor exists.
    let error = unsafe { cudnn::result::set_tensor4d_descriptor(tensor, nhwc, single, [1; 4]) }.unwrap_err();
    assert_eq!(error.0, cudnn::sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED);
}

#[test]
fn an_operand_that_reaches_past_its_buffer_is_told() {
    let test = "an_operand_that_reaches_past_its_buffer_is_told";
    let body = || {
        let Some(device) = with_libraries() else { return };
        let slices = [8, 12, 5].map(|len| device.stream.alloc_zeros::<f32>(len).unwrap());
        let product = Product::new(&[], [(2, 4, 2), (4, 3, 4), (2, 3, 2)], 0, 0).unwrap();
        let [a, b, d] = slices.each_ref().map(|slice| address(slice, &device));
        let status = product.run(&device, 0.0, [a, b, d, null_mut::<f32>() as u64], 0).unwrap_err();
        assert_eq!(status.0, sys::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED);
        assert!(device.stream.synchronize().is_err(), "the device is lost, as after any such access");
        // Its slices could not be freed.
        std::mem::forget(slices);
    };
    let Some(stderr) = common::in_child(test, &[], body) else { return };
    assert!(stderr.contains("cublasLtMatmul: 24 bytes at") || stderr.contains("skipped"), "{stderr}");
}
