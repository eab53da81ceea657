//! The emulated device, as a program with cudarc sees it.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ffi::{CString, c_char};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig};
use cudarc::nvrtc::{Ptx, sys as nvrtc};

const DEVICE_HEADER: &str = include_str!("../../../nn-kernels/src/cuda/kernels/device.cuh");

pub(crate) struct Device {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
}

/// `None`, and a line that says so, if there is no emulator on this machine. With `NN_CUDA=gpu` a GPU, which must be
/// there: what the emulator takes the wrappers in `device.cuh` to mean is then held against what they do.
pub(crate) fn device() -> Option<Device> {
    if std::env::var("NN_CUDA").as_deref() != Ok("gpu") && !nn_cuda_emulator::installed_or_skip() {
        return None;
    }
    let context = CudaContext::new(0).unwrap();
    // SAFETY: a test uses one stream.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    Some(Device { context, stream })
}

impl Device {
    /// The kernel `name` of `source`, which follows `#include "device.cuh"`.
    pub(crate) fn kernel(&self, source: &str, name: &str) -> CudaFunction {
        self.kernel_with(source, name, &[])
    }

    pub(crate) fn kernel_with(&self, source: &str, name: &str, options: &[&str]) -> CudaFunction {
        let source =
            format!("#include \"device.cuh\"\nusing namespace nn;\n#line 1\n{source}\nNN_KERNEL({name})\n");
        // For a virtual architecture, NVRTC's own choice, there is no machine code.
        let (major, minor) = self.context.compute_capability().unwrap();
        let arch = format!("--gpu-architecture=sm_{major}{minor}");
        let image = compile(&source, &[&[arch.as_str(), "--std=c++17"], options].concat()).unwrap();
        self.context.load_module(Ptx::from_binary(image)).unwrap().load_function(name).unwrap()
    }
}

/// Compiles to a cubin, or gives the compiler's log.
pub(crate) fn compile(source: &str, options: &[&str]) -> Result<Vec<u8>, String> {
    let text = |text: &str| CString::new(text).unwrap();
    let (source, header) = (text(source), text(DEVICE_HEADER));
    let options: Vec<_> = options.iter().map(|option| text(option)).collect();
    let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: every pointer is to memory that outlives the call it is given to, and buffers have the size asked for.
    unsafe {
        let mut program = null_mut();
        nvrtc::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            c"kernel.cu".as_ptr(),
            1,
            [header.as_ptr()].as_ptr(),
            [c"device.cuh".as_ptr()].as_ptr(),
        )
        .result()
        .unwrap();
        let compiled = nvrtc::nvrtcCompileProgram(program, options.len() as i32, options.as_ptr()).result();
        let mut bytes = 0;
        let mut output: Vec<u8>;
        if compiled.is_ok() {
            nvrtc::nvrtcGetCUBINSize(program, &mut bytes).result().unwrap();
            output = vec![0; bytes];
            nvrtc::nvrtcGetCUBIN(program, output.as_mut_ptr().cast::<c_char>()).result().unwrap();
        } else {
            nvrtc::nvrtcGetProgramLogSize(program, &mut bytes).result().unwrap();
            output = vec![0; bytes];
            nvrtc::nvrtcGetProgramLog(program, output.as_mut_ptr().cast::<c_char>()).result().unwrap();
        }
        nvrtc::nvrtcDestroyProgram(&mut program).result().unwrap();
        if compiled.is_ok() { Ok(output) } else { Err(String::from_utf8_lossy(&output).into_owned()) }
    }
}

pub(crate) fn shape(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// Runs `body` in a process of its own, as a fault stays with a process, and gives what it wrote to stderr. `test` is
/// the name of the test that calls; in the child this returns nothing.
pub(crate) fn in_child(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    const CHILD: &str = "NN_EMU_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        body();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(CHILD, "1").envs(environment.iter().copied());
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}{stderr}", String::from_utf8_lossy(&output.stdout));
    Some(stderr)
}

/// Reproducible numbers in [-1, 1).
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
