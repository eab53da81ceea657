//! Convolutions by cuDNN, in the layout that they have here: channels first.
//!
//! Its search by timing would choose another algorithm from run to run; the heuristic gives the same one for a shape.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::from_ref;

use cudarc::cudnn::result::{self, CudnnError};
use cudarc::cudnn::sys;
use cudarc::driver::sys::CUstream;

use super::libraries::WORKSPACE;
use crate::ops::Conv2dSpec;

const SINGLE: sys::cudnnDataType_t = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
const CHANNELS_FIRST: sys::cudnnTensorFormat_t = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
/// Algorithms to choose from: all that there are.
const ASKED: usize = 8;
/// Bytes that addresses must be multiples of: the descriptors do not tell cuDNN of others.
const ALIGNED: u64 = 16;

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    /// y, of x and w.
    Forward,
    /// dx, of w and dy.
    Data,
    /// What is added to dw, of x and dy.
    Filter,
}

/// All that the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// All of its numbers. What is done to the outputs afterwards is not cuDNN's.
    sizes: [[usize; 2]; 8],
    pass: Pass,
    tf32: bool,
}

impl Key {
    fn new(s: &Conv2dSpec, pass: Pass, tf32: bool) -> Self {
        let (many, channels) = ([s.batch, s.groups], [s.in_channels, s.out_channels]);
        let sizes = [many, channels, s.input, s.output, s.kernel, s.stride, s.padding, s.dilation];
        Self { sizes, pass, tf32 }
    }
}

/// The addresses of a convolution: x or dx, w or dw, y or dy.
pub(super) type Operands = [u64; 3];

/// Whether cuDNN knows such a convolution: it computes all outputs that there are, and counts in 32 bits.
pub(super) fn knows(s: &Conv2dSpec, operands: Operands) -> bool {
    let all = |axis: usize| {
        let reach = s.dilation[axis] * (s.kernel[axis] - 1) + 1;
        let padded = s.input[axis] + 2 * s.padding[axis];
        padded >= reach && s.output[axis] == (padded - reach) / s.stride[axis] + 1
    };
    let sizes = [
        s.batch * s.in_channels * s.input[0] * s.input[1],
        s.out_channels * (s.in_channels / s.groups) * s.kernel[0] * s.kernel[1],
        s.batch * s.out_channels * s.output[0] * s.output[1],
    ];
    all(0)
        && all(1)
        && sizes.into_iter().all(|size| size > 0 && size < 1 << 31)
        && operands.into_iter().all(|address| address.is_multiple_of(ALIGNED))
}

/// cuDNN, and the convolutions that were planned.
pub(super) struct Dnn {
    stream: CUstream,
    plans: Vec<Plan>,
    known: HashMap<Key, Result<usize, CudnnError>>,
    /// Opened for the first convolution: it takes about a second and some of the GPU's memory.
    handle: Option<Result<Handle, CudnnError>>,
}

// SAFETY: the handle and what is described with it may be used from every thread, one at a time.
unsafe impl Send for Dnn {}

impl Dnn {
    /// For a stream, which must outlive it.
    pub(super) fn new(stream: CUstream) -> Self {
        Self { stream, handle: None, plans: Vec::new(), known: HashMap::new() }
    }

    /// The plan for a convolution that cuDNN [`knows`], made if it is a new one, or why there is none.
    pub(super) fn plan(&mut self, spec: &Conv2dSpec, pass: Pass, tf32: bool) -> Result<usize, CudnnError> {
        let key = Key::new(spec, pass, tf32);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let handle = self.handle.get_or_insert_with(|| Handle::new(self.stream));
        let planned =
            handle.as_ref().map_err(|error| *error).and_then(|handle| Plan::new(handle.0, spec, &key));
        let planned = planned.map(|plan| {
            self.plans.push(plan);
            self.plans.len() - 1
        });
        self.known.insert(key, planned);
        planned
    }

    pub(super) fn run(&self, plan: usize, operands: &[u64], workspace: u64) -> Result<(), CudnnError> {
        let Some(Ok(handle)) = &self.handle else { unreachable!("there is a plan") };
        let Plan { shape, algorithm } = &self.plans[plan];
        let Shape { x: xs, w: ws, y: ys, conv } = shape;
        let &[x, w, y] = operands else { unreachable!("a convolution has three operands") };
        let (alpha, store, add) = (1.0_f32, 0.0_f32, 1.0_f32);
        let [alpha, store, add] = [&alpha, &store, &add].map(|factor| from_ref(factor).cast::<c_void>());
        let at = |address: u64| address as *mut c_void;
        let (room, handle) = (at(workspace), handle.0);
        // SAFETY: the descriptors exist, and say what whoever recorded the call has at the addresses; the workspace is
        // as large as is said. The factors are read before the call returns.
        unsafe {
            match *algorithm {
                Algorithm::Forward(by) => result::convolution_forward(
                    handle,
                    alpha,
                    xs.0,
                    at(x),
                    ws.0,
                    at(w),
                    conv.0,
                    by,
                    room,
                    WORKSPACE,
                    store,
                    ys.0,
                    at(y),
                ),
                Algorithm::Data(by) => result::convolution_backward_data(
                    handle,
                    alpha,
                    ws.0,
                    at(w),
                    ys.0,
                    at(y),
                    conv.0,
                    by,
                    room,
                    WORKSPACE,
                    store,
                    xs.0,
                    at(x),
                ),
                Algorithm::Filter(by) => result::convolution_backward_filter(
                    handle,
                    alpha,
                    xs.0,
                    at(x),
                    ys.0,
                    at(y),
                    conv.0,
                    by,
                    room,
                    WORKSPACE,
                    add,
                    ws.0,
                    at(w),
                ),
            }
        }
    }
}

struct Handle(sys::cudnnHandle_t);

impl Handle {
    fn new(stream: CUstream) -> Result<Self, CudnnError> {
        let handle = Self(result::create_handle()?);
        // SAFETY: both exist.
        unsafe { result::set_stream(handle.0, stream.cast())? };
        Ok(handle)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it exists, and nobody uses it any more. There is nothing to do about an error.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

/// A convolution, described, and the algorithm for it.
struct Plan {
    shape: Shape,
    algorithm: Algorithm,
}

enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    Data(sys::cudnnConvolutionBwdDataAlgo_t),
    Filter(sys::cudnnConvolutionBwdFilterAlgo_t),
}

/// The first algorithm of a heuristic that gives the same bits each time, in the arithmetic that is allowed, with the
/// workspace that there is. Its kind of arithmetic is set in the description.
macro_rules! choose {
    ($asked:path, $workspace:path, $result:ty, $tf32:expr, $conv:expr, $($described:expr),+) => {{
        let (mut found, mut count): ([MaybeUninit<$result>; ASKED], c_int) = ([MaybeUninit::uninit(); ASKED], 0);
        // SAFETY: all that is named exists, and there is room for as many results as are asked for.
        unsafe { $asked($($described),+, ASKED as c_int, &mut count, found.as_mut_ptr().cast())? };
        let found = found.into_iter().take(usize::try_from(count).unwrap_or(0));
        let mut chosen = Err(CudnnError(sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED));
        for found in found {
            // SAFETY: the library wrote as many as it counted.
            let found = unsafe { found.assume_init() };
            let same = found.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC;
            if found.status.result().is_err() || !same || !allowed(found.mathType, $tf32) {
                continue;
            }
            $conv.compute_by(found.mathType)?;
            // SAFETY: all that is named exists.
            let needed = unsafe { $workspace($($described),+, found.algo) };
            if needed.is_ok_and(|bytes| bytes <= WORKSPACE) {
                chosen = Ok(found.algo);
                break;
            }
        }
        chosen?
    }};
}

/// Whether a kind of arithmetic is wanted: in full precision, or of numbers rounded to TF32, but to nothing less.
fn allowed(by: sys::cudnnMathType_t, tf32: bool) -> bool {
    use sys::cudnnMathType_t::*;
    match by {
        CUDNN_FMA_MATH => true,
        CUDNN_DEFAULT_MATH | CUDNN_TENSOR_OP_MATH => tf32,
        CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION => false,
    }
}

impl Plan {
    fn new(handle: sys::cudnnHandle_t, spec: &Conv2dSpec, key: &Key) -> Result<Self, CudnnError> {
        let shape = Shape::new(spec, key.tf32)?;
        let (x, w, y, conv) = (shape.x.0, shape.w.0, shape.y.0, &shape.conv);
        let algorithm = match key.pass {
            Pass::Forward => Algorithm::Forward(choose!(
                result::get_convolution_forward_algorithm,
                result::get_convolution_forward_workspace_size,
                sys::cudnnConvolutionFwdAlgoPerf_t,
                key.tf32,
                conv,
                handle,
                x,
                w,
                conv.0,
                y
            )),
            Pass::Data => Algorithm::Data(choose!(
                result::get_convolution_backward_data_algorithm,
                result::get_convolution_backward_data_workspace_size,
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                key.tf32,
                conv,
                handle,
                w,
                y,
                conv.0,
                x
            )),
            Pass::Filter => Algorithm::Filter(choose!(
                result::get_convolution_backward_filter_algorithm,
                result::get_convolution_backward_filter_workspace_size,
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                key.tf32,
                conv,
                handle,
                x,
                y,
                conv.0,
                w
            )),
        };
        Ok(Self { shape, algorithm })
    }
}

/// The descriptions of a convolution's operands, and of what it does with them.
struct Shape {
    x: Tensor,
    w: Filter,
    y: Tensor,
    conv: Convolution,
}

impl Shape {
    fn new(s: &Conv2dSpec, tf32: bool) -> Result<Self, CudnnError> {
        Ok(Self {
            x: Tensor::new([s.batch, s.in_channels, s.input[0], s.input[1]])?,
            w: Filter::new([s.out_channels, s.in_channels / s.groups, s.kernel[0], s.kernel[1]])?,
            y: Tensor::new([s.batch, s.out_channels, s.output[0], s.output[1]])?,
            conv: Convolution::new(s, tf32)?,
        })
    }
}

struct Tensor(sys::cudnnTensorDescriptor_t);

impl Tensor {
    fn new(dims: [usize; 4]) -> Result<Self, CudnnError> {
        let tensor = Self(result::create_tensor_descriptor()?);
        // SAFETY: it exists.
        unsafe {
            result::set_tensor4d_descriptor(tensor.0, CHANNELS_FIRST, SINGLE, dims.map(|dim| dim as c_int))?
        };
        Ok(tensor)
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: it exists, and nobody uses it any more. There is nothing to do about an error.
        let _ = unsafe { result::destroy_tensor_descriptor(self.0) };
    }
}

struct Filter(sys::cudnnFilterDescriptor_t);

impl Filter {
    fn new(dims: [usize; 4]) -> Result<Self, CudnnError> {
        let filter = Self(result::create_filter_descriptor()?);
        // SAFETY: it exists.
        unsafe {
            result::set_filter4d_descriptor(filter.0, SINGLE, CHANNELS_FIRST, dims.map(|dim| dim as c_int))?
        };
        Ok(filter)
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // SAFETY: as for a tensor.
        let _ = unsafe { result::destroy_filter_descriptor(self.0) };
    }
}

struct Convolution(sys::cudnnConvolutionDescriptor_t);

impl Convolution {
    fn new(s: &Conv2dSpec, tf32: bool) -> Result<Self, CudnnError> {
        let conv = Self(result::create_convolution_descriptor()?);
        let [padding, stride, dilation] =
            [s.padding, s.stride, s.dilation].map(|pair| pair.map(|n| n as c_int));
        // What is called a convolution here does not turn the kernel round.
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        // SAFETY: it exists.
        unsafe {
            result::set_convolution2d_descriptor(
                conv.0,
                padding[0],
                padding[1],
                stride[0],
                stride[1],
                dilation[0],
                dilation[1],
                mode,
                SINGLE,
            )?;
            result::set_convolution_group_count(conv.0, s.groups as c_int)?;
        }
        // The default allows TF32.
        use sys::cudnnMathType_t::{CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH};
        conv.compute_by(if tf32 { CUDNN_DEFAULT_MATH } else { CUDNN_FMA_MATH })?;
        Ok(conv)
    }

    fn compute_by(&self, by: sys::cudnnMathType_t) -> Result<(), CudnnError> {
        // SAFETY: it exists.
        unsafe { result::set_convolution_math_type(self.0, by) }
    }
}

impl Drop for Convolution {
    fn drop(&mut self) {
        // SAFETY: as for a tensor.
        let _ = unsafe { result::destroy_convolution_descriptor(self.0) };
    }
}
