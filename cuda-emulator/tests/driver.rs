//! The stand-in driver does what a driver does.

mod common;

use std::ptr::null_mut;

use common::{Device, compile, device, in_child, numbers, shape};
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, DevicePtr, LaunchConfig, PushKernelArg, result};
use cudarc::nvrtc::Ptx;

const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// `y = factor * x + y`
const AXPY: &str = r#"
    extern "C" __global__ void axpy(float factor, const float* x, float* y) {
        y[threadIdx.x] += factor * x[threadIdx.x];
    }"#;

fn axpy(device: &Device, kernel: &CudaFunction, factor: f32, x: &CudaSlice<f32>, y: &mut CudaSlice<f32>) {
    let mut launch = device.stream.launch_builder(kernel);
    // SAFETY: the arguments are those of the kernel.
    unsafe { launch.arg(&factor).arg(x).arg(y).launch(shape(1, x.len() as u32)) }.unwrap();
}

#[test]
fn a_graph_gives_what_single_launches_give_and_reads_changed_memory() {
    let Some(device) = device() else { return };
    let stream = &device.stream;
    let kernel = device.kernel(AXPY, "axpy");
    let [first, second] = [numbers(100, 1), numbers(100, 2)];
    let mut x = stream.clone_htod(&first).unwrap();
    let mut y = stream.alloc_zeros::<f32>(100).unwrap();
    let steps = |x: &CudaSlice<f32>, y: &mut CudaSlice<f32>| {
        stream.memset_zeros(y).unwrap();
        for factor in [0.5, 0.25] {
            axpy(&device, &kernel, factor, x, y);
        }
    };
    let eager = |values: &[f32]| {
        let x = stream.clone_htod(values).unwrap();
        let mut y = stream.clone_htod(&[7f32; 100]).unwrap();
        steps(&x, &mut y);
        stream.clone_dtoh(&y).unwrap()
    };
    stream.begin_capture(MODE).unwrap();
    steps(&x, &mut y);
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), [0.0; 100], "a capture runs nothing");
    graph.launch().unwrap();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), eager(&first));
    stream.memcpy_htod(&second, &mut x).unwrap();
    graph.launch().unwrap();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), eager(&second));
    assert_ne!(eager(&first), eager(&second));
}

#[test]
fn a_graph_copies_from_and_to_the_host_when_it_runs() {
    let Some(device) = device() else { return };
    let stream = &device.stream;
    let mut x = stream.alloc_zeros::<f32>(4).unwrap();
    let mut y = stream.alloc_zeros::<f32>(4).unwrap();
    let mut host = vec![1f32; 4];
    let mut back = vec![0f32; 4];
    stream.begin_capture(MODE).unwrap();
    stream.memcpy_htod(&host, &mut x).unwrap();
    stream.memcpy_dtod(&x, &mut y).unwrap();
    stream.memcpy_dtoh(&y, &mut back).unwrap();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    host.fill(2.0);
    graph.launch().unwrap();
    assert_eq!(back, [2.0; 4]);
    host.fill(3.0);
    graph.launch().unwrap();
    assert_eq!(back, [3.0; 4]);
}

#[test]
fn a_graph_can_be_made_and_run_without_the_safe_layer() {
    let Some(device) = device() else { return };
    let kernel = device.kernel(AXPY, "axpy");
    let mut x = device.stream.clone_htod(&[1f32; 8]).unwrap();
    let y = device.stream.clone_htod(&[1f32; 8]).unwrap();
    let stream = device.stream.cu_stream();
    let (x_address, y_address) = (x.device_ptr(&device.stream).0, y.device_ptr(&device.stream).0);
    // SAFETY: the handles are live, the addresses those of buffers that are large enough, and the arguments those of
    // the kernel.
    unsafe {
        sys::cuStreamBeginCapture_v2(stream, MODE).result().unwrap();
        sys::cuMemsetD32Async(x_address, 3f32.to_bits(), 8, stream).result().unwrap();
        let mut factor = 2f32;
        let (mut x_argument, mut y_argument) = (x_address, y_address);
        let mut arguments =
            [(&raw mut factor).cast(), (&raw mut x_argument).cast(), (&raw mut y_argument).cast()];
        let function = kernel.cu_function();
        result::launch_kernel(function, (1, 1, 1), (8, 1, 1), 0, stream, &mut arguments).unwrap();
        // Too late: the values were taken when the launch was captured.
        (factor, x_argument) = (100.0, 0);
        let mut graph = null_mut();
        sys::cuStreamEndCapture(stream, &mut graph).result().unwrap();
        let mut nodes = 0;
        sys::cuGraphGetNodes(graph, null_mut(), &mut nodes).result().unwrap();
        assert_eq!(nodes, 2);
        let mut executable = null_mut();
        sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0).result().unwrap();
        sys::cuGraphDestroy(graph).result().unwrap();
        for _ in 0..2 {
            sys::cuGraphLaunch(executable, stream).result().unwrap();
        }
        sys::cuGraphExecDestroy(executable).result().unwrap();
        assert_eq!((factor, x_argument), (100.0, 0));
    }
    assert_eq!(device.stream.clone_dtoh(&y).unwrap(), [13.0; 8]);
    device.stream.memset_zeros(&mut x).unwrap();
    assert_eq!(device.stream.clone_dtoh(&x).unwrap(), [0.0; 8]);
}

#[test]
fn a_capture_refuses_what_a_driver_refuses() {
    let Some(device) = device() else { return };
    let stream = &device.stream;
    let refused: [(&str, &dyn Fn() -> CUresult); 3] = [
        ("synchronise", &|| stream.synchronize().unwrap_err().0),
        ("allocate", &|| stream.alloc_zeros::<f32>(1).unwrap_err().0),
        ("wait for the device", &|| device.context.synchronize().unwrap_err().0),
    ];
    for (what, call) in refused {
        stream.begin_capture(MODE).unwrap();
        assert_eq!(call(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{what}");
        let error = stream.end_capture(CUgraphInstantiate_flags(0)).err().expect("it is invalid");
        assert_eq!(error.0, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{what}");
        stream.synchronize().unwrap();
    }
}

#[test]
fn more_dynamic_shared_memory_has_to_be_asked_for() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(float* y, int n) {
            NN_DYNAMIC_SHARED(float, shared);
            for (int i = threadIdx.x; i < n; i += blockDim.x) shared[i] = i;
            __syncthreads();
            y[threadIdx.x] = shared[n - 1 - threadIdx.x];
        }"#;
    let kernel = device.kernel(source, "k");
    let mut y = device.stream.alloc_zeros::<f32>(32).unwrap();
    let n = 25_000i32;
    let config = LaunchConfig { shared_mem_bytes: 4 * n as u32, ..shape(1, 32) };
    let mut launch = || {
        // SAFETY: the arguments are those of the kernel.
        unsafe { device.stream.launch_builder(&kernel).arg(&mut y).arg(&n).launch(config) }.map(|_| ())
    };
    assert_eq!(launch().unwrap_err().0, CUresult::CUDA_ERROR_INVALID_VALUE);
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    kernel.set_attribute(attribute, 100_000).unwrap();
    launch().unwrap();
    assert_eq!(device.stream.clone_dtoh(&y).unwrap()[31], (n - 32) as f32);
    assert!(kernel.set_attribute(attribute, 300_000).is_err(), "more than there is");
}

#[test]
fn copies_and_fills_stay_inside_their_buffer() {
    let Some(device) = device() else { return };
    let x = device.stream.clone_htod(&[1u32, 2, 3]).unwrap();
    let address = x.device_ptr(&device.stream).0;
    let stream = device.stream.cu_stream();
    let mut host = [0u32; 4];
    // SAFETY: the driver refuses what is not inside the buffer.
    unsafe {
        let error = result::memcpy_dtoh_async(&mut host, address, stream).unwrap_err();
        assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_VALUE);
        assert!(result::memcpy_htod_async(address + 4, &[0u32; 3], stream).is_err());
        assert!(sys::cuMemsetD32Async(address, 7, 4, stream).result().is_err());
        assert!(sys::cuMemsetD8Async(address - 1, 7, 1, stream).result().is_err());
        sys::cuMemsetD32Async(address + 4, 7, 2, stream).result().unwrap();
    }
    assert_eq!(device.stream.clone_dtoh(&x).unwrap(), [1, 7, 7]);
}

#[test]
fn memory_is_counted() {
    let Some(device) = device() else { return };
    let body = || {
        let (before, total) = result::mem_get_info().unwrap();
        // SAFETY: never read.
        let large = unsafe { device.stream.alloc::<u8>(1 << 20) }.unwrap();
        assert_eq!(result::mem_get_info().unwrap(), (before - (1 << 20), total));
        drop(large);
        assert_eq!(result::mem_get_info().unwrap().0, before);
        // SAFETY: never read.
        let error = unsafe { device.stream.alloc::<u8>(total + 1) }.unwrap_err();
        assert_eq!(error.0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    };
    in_child("memory_is_counted", &[], body);
}

#[test]
fn pinned_memory_is_memory() {
    let Some(device) = device() else { return };
    // SAFETY: filled before it is read.
    let mut pinned = unsafe { device.context.alloc_pinned::<f32>(16) }.unwrap();
    pinned.as_mut_slice().unwrap().fill(4.0);
    let x = device.stream.clone_htod(&pinned).unwrap();
    assert_eq!(device.stream.clone_dtoh(&x).unwrap(), [4.0; 16]);
}

#[test]
fn a_mistake_in_a_kernel_is_in_the_log() {
    let Some(_) = device() else { return };
    let log = compile("extern \"C\" __global__ void k(float* y) { *y = undeclared; }", &[]).unwrap_err();
    assert!(log.contains("kernel.cu:1:") && log.contains("undeclared"), "{log}");
}

#[test]
fn options_define_constants() {
    let Some(device) = device() else { return };
    let source = r#"extern "C" __global__ void k(float* y) { *y = A * 100 + B * 10 + C + block_sum(0.0f); }"#;
    let letters: Vec<String> = ('D'..='Z').map(|letter| format!("-D{letter}=0")).collect();
    let options = ["--gpu-architecture=sm_90", "-DA=1", "-D B=2", "--define-macro=C=3", "--std=c++17"];
    let options: Vec<&str> = options.into_iter().chain(letters.iter().map(String::as_str)).collect();
    let kernel = device.kernel_with(source, "k", &options);
    let mut y = device.stream.alloc_zeros::<f32>(1).unwrap();
    // SAFETY: the argument is that of the kernel.
    unsafe { device.stream.launch_builder(&kernel).arg(&mut y).launch(shape(1, 32)) }.unwrap();
    assert_eq!(device.stream.clone_dtoh(&y).unwrap(), [123.0]);
}

#[test]
fn a_module_can_be_unloaded_and_loaded_again() {
    let Some(device) = device() else { return };
    for factor in [1.0, 2.0, 3.0] {
        let kernel = device.kernel(AXPY, "axpy");
        let x = device.stream.clone_htod(&[1f32; 4]).unwrap();
        let mut y = device.stream.alloc_zeros::<f32>(4).unwrap();
        axpy(&device, &kernel, factor, &x, &mut y);
        assert_eq!(device.stream.clone_dtoh(&y).unwrap(), [factor; 4]);
    }
}

#[test]
fn events_are_recorded_on_streams_that_wait_for_each_other() {
    let Some(device) = device() else { return };
    // With the events that cudarc makes for every buffer, which the other tests do without.
    let context = CudaContext::new(0).unwrap();
    let (one, two) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let start = one.record_event(flags).unwrap();
    let kernel = device.kernel(AXPY, "axpy");
    let x = one.clone_htod(&[1f32; 8]).unwrap();
    let mut y = two.alloc_zeros::<f32>(8).unwrap();
    // SAFETY: the arguments are those of the kernel.
    unsafe { two.launch_builder(&kernel).arg(&3f32).arg(&x).arg(&mut y).launch(shape(1, 8)) }.unwrap();
    let end = two.record_event(flags).unwrap();
    one.wait(&end).unwrap();
    assert_eq!(one.clone_dtoh(&y).unwrap(), [3.0; 8]);
    end.synchronize().unwrap();
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
}

#[test]
fn an_image_that_this_build_did_not_make_is_refused() {
    let Some(device) = device() else { return };
    for image in ["", "\x7fELF", "nn-cuda-emulator:/elsewhere/kernels/k.so"] {
        let image = [image.as_bytes(), b"\0"].concat();
        let error = device.context.load_module(Ptx::from_binary(image)).unwrap_err();
        assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
}

#[test]
fn a_grid_may_be_large() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(unsigned* y) {
            y[0] += 1, atomicMax(&y[1], blockIdx.x);
        }"#;
    let kernel = device.kernel(source, "k");
    let blocks = 3_000_000;
    let mut y = device.stream.alloc_zeros::<u32>(2).unwrap();
    // SAFETY: the argument is that of the kernel.
    unsafe { device.stream.launch_builder(&kernel).arg(&mut y).launch(shape(blocks, 1)) }.unwrap();
    assert_eq!(device.stream.clone_dtoh(&y).unwrap(), [blocks, blocks - 1]);
}
