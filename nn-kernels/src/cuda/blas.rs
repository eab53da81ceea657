//! Products by cuBLASLt.
//!
//! Its matrices are column-major. A row-major result of `rows` by `cols` is to it the transposed one, of `cols` by
//! `rows`, and so the factors change places.
//!
//! Its epilogue adds the bias. Activations are left to a kernel: it documents ReLU as max(x, 0), where ours keeps NaN,
//! and does not document which form of GELU it has.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{from_mut, from_ref};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUstream;

use super::libraries::WORKSPACE;

const SINGLE: sys::cudaDataType_t = sys::cudaDataType_t::CUDA_R_32F;
const BF16: sys::cudaDataType_t = sys::cudaDataType_t::CUDA_R_16BF;
/// Algorithms to choose from.
const ASKED: usize = 8;
/// Alignment beyond which the heuristic makes no difference.
const ALIGNED: u32 = 256;

/// A factor as it lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Factor {
    pub(super) transposed: bool,
    /// From one column to the next.
    pub(super) stride: usize,
}

/// A product as cuBLASLt sees it: D of m by n, of op(A) of m by k and op(B) of k by n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Factor,
    pub(super) b: Factor,
    /// To what is in D already.
    pub(super) add: bool,
    /// A number for each of the m rows of D.
    pub(super) bias: bool,
    pub(super) precision: Precision,
}

/// What factors, the bias and the result are, and what is computed with. Sums are of `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Precision {
    Single,
    /// `f32`, of which factors may be rounded.
    Tf32,
    Bf16,
}

/// All that the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    shape: Shape,
    /// Powers of two that the addresses are multiples of.
    alignment: [u32; 4],
}

/// The addresses of a product: A, B, D and the bias, which may be 0.
pub(super) type Operands = [u64; 4];

fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(ALIGNED.trailing_zeros())
}

/// cuBLASLt, and the products that were planned.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    plans: Vec<Plan>,
    known: HashMap<Key, Result<usize, CublasError>>,
}

// SAFETY: the handle and what is described with it may be used from every thread, one at a time.
unsafe impl Send for Blas {}

impl Blas {
    pub(super) fn new() -> Result<Self, CublasError> {
        Ok(Self { handle: result::create_handle()?, plans: Vec::new(), known: HashMap::new() })
    }

    /// The plan for a product, made if it is a new one, or why there is none.
    pub(super) fn plan(&mut self, shape: Shape, operands: Operands) -> Result<usize, CublasError> {
        let key = Key { shape, alignment: operands.map(alignment) };
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let planned = Plan::new(self.handle, &key, operands[3]).map(|plan| {
            self.plans.push(plan);
            self.plans.len() - 1
        });
        self.known.insert(key, planned);
        planned
    }

    pub(super) fn run(
        &self,
        plan: usize,
        operands: &[u64],
        workspace: u64,
        stream: CUstream,
    ) -> Result<(), CublasError> {
        let plan = &self.plans[plan];
        let &[a, b, d, bias] = operands else { unreachable!("a product has four operands") };
        if bias != 0 {
            plan.product
                .set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        let (alpha, d) = (1.0_f32, d as *mut c_void);
        // SAFETY: the descriptors exist, and say what whoever recorded the call has at the addresses; the workspace is
        // as large as is said. The factors are read before the call returns.
        unsafe {
            result::matmul(
                self.handle,
                plan.product.0,
                from_ref(&alpha).cast(),
                from_ref(&plan.beta).cast(),
                a as *const c_void,
                plan.a.0,
                b as *const c_void,
                plan.b.0,
                d,
                plan.d.0,
                d,
                plan.d.0,
                &plan.algorithm,
                workspace as *mut c_void,
                WORKSPACE,
                stream.cast(),
            )
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: it exists, and nobody uses it any more. There is nothing to do about an error.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// A product, described, and the algorithm for it.
struct Plan {
    product: Product,
    a: Layout,
    b: Layout,
    d: Layout,
    beta: f32,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Plan {
    fn new(handle: sys::cublasLtHandle_t, key: &Key, bias: u64) -> Result<Self, CublasError> {
        let Shape { m, n, k, a, b, add, precision, .. } = key.shape;
        let kind = if precision == Precision::Bf16 { BF16 } else { SINGLE };
        let layout = |factor: Factor, rows, cols| match factor.transposed {
            false => Layout::new(kind, rows, cols, factor.stride),
            true => Layout::new(kind, cols, rows, factor.stride),
        };
        let product = Product::new(precision)?;
        {
            use sys::cublasLtMatmulDescAttributes_t::*;
            let operation = |factor: Factor| u32::from(factor.transposed);
            product.set(CUBLASLT_MATMUL_DESC_TRANSA, &operation(a))?;
            product.set(CUBLASLT_MATMUL_DESC_TRANSB, &operation(b))?;
            if key.shape.bias {
                let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
                product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
                product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
            }
        }
        let (a, b, d) = (layout(a, m, k)?, layout(b, k, n)?, Layout::new(kind, m, n, m)?);
        // Parts of a sum are not rounded to what the result is.
        let ordered = if precision == Precision::Bf16 { ORDERED_WIDE } else { ORDERED };
        let preference = Preference::new(key.alignment, ordered)?;
        let algorithm = choose(handle, &product, [&a, &b, &d], &preference, ordered)?;
        Ok(Self { product, a, b, d, beta: if add { 1.0 } else { 0.0 }, algorithm })
    }
}

/// The first algorithm of the heuristic whose parts of sums are added in an order that stays the same.
fn choose(
    handle: sys::cublasLtHandle_t,
    product: &Product,
    [a, b, d]: [&Layout; 3],
    preference: &Preference,
    ordered: u32,
) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
    let none = sys::cublasLtMatmulHeuristicResult_t {
        algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspaceSize: 0,
        state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
        wavesCount: 0.0,
        reserved: [0; 4],
    };
    let (mut found, mut count) = ([none; ASKED], 0);
    // SAFETY: all that is named exists, and there is room for as many results as are asked for.
    let asked = unsafe {
        sys::cublasLtMatmulAlgoGetHeuristic(
            handle,
            product.0,
            a.0,
            b.0,
            d.0,
            d.0,
            preference.0,
            ASKED as i32,
            found.as_mut_ptr(),
            &mut count,
        )
    };
    asked.result()?;
    let found = found.into_iter().take(usize::try_from(count).unwrap_or(0));
    let fits = |result: &sys::cublasLtMatmulHeuristicResult_t| {
        result.state.result().is_ok()
            && result.workspaceSize <= WORKSPACE
            && keeps_order(&result.algo, ordered)
    };
    let unsupported = CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
    found
        .map(|result| (fits(&result), result.algo))
        .find(|(fits, _)| *fits)
        .map(|(_, algo)| algo)
        .ok_or(unsupported)
}

/// Whether an algorithm adds parts of sums outside the result, one after the other, if it cuts them at all.
fn keeps_order(algorithm: &sys::cublasLtMatmulAlgo_t, ordered: u32) -> bool {
    let attribute = sys::cublasLtMatmulAlgoConfigAttributes_t::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME;
    let (mut scheme, mut written) = (0_u32, 0);
    // SAFETY: the attribute is a number of 4 bytes.
    let told = unsafe {
        sys::cublasLtMatmulAlgoConfigGetAttribute(
            algorithm,
            attribute,
            from_mut(&mut scheme).cast(),
            size_of::<u32>(),
            &mut written,
        )
    };
    told.result().is_ok() && scheme & !ordered == 0
}

/// Ways to add parts of sums that are in a fixed order; that in place of the result is none.
const ORDERED: u32 =
    ORDERED_WIDE | sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE as u32;
/// Those that add them before they are rounded.
const ORDERED_WIDE: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;

/// The description of a product.
struct Product(sys::cublasLtMatmulDesc_t);

impl Product {
    fn new(precision: Precision) -> Result<Self, CublasError> {
        use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
        let tf32 = precision == Precision::Tf32;
        let compute = if tf32 { CUBLAS_COMPUTE_32F_FAST_TF32 } else { CUBLAS_COMPUTE_32F };
        result::create_matmul_desc(compute, SINGLE).map(Self)
    }

    fn set<T: bytemuck::Pod>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), CublasError> {
        // SAFETY: the description exists, and whoever calls this gives a value of the attribute's type.
        unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, from_ref(value).cast(), size_of::<T>())
        }
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: it exists, and nobody uses it any more. There is nothing to do about an error.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// The description of a matrix.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(kind: sys::cudaDataType_t, rows: usize, cols: usize, stride: usize) -> Result<Self, CublasError> {
        result::create_matrix_layout(kind, rows as u64, cols as u64, stride as i64).map(Self)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: as for a product.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// What algorithms may be chosen from.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new([a, b, d, _]: [u32; 4], ordered: u32) -> Result<Self, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t::*;
        let preference = Self(result::create_matmul_pref()?);
        preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(WORKSPACE as u64))?;
        preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &ordered)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d)?;
        Ok(preference)
    }

    fn set<T: bytemuck::Pod>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), CublasError> {
        // SAFETY: the preference exists, and whoever calls this gives a value of the attribute's type.
        unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, from_ref(value).cast(), size_of::<T>())
        }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: as for a product.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
