//! Every file of kernels compiles for the GPUs that are meant, with the real NVRTC and without a GPU.

use std::sync::OnceLock;

use nn_kernels::DeviceError;
use nn_kernels::cuda::compile_all;

/// Loads the libraries in `NN_NVRTC_DIR`, where they are found again by their names. What they need comes first.
fn load() -> Result<(), String> {
    let Some(folder) = std::env::var_os("NN_NVRTC_DIR") else { return Ok(()) };
    for name in ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"] {
        let path = std::path::Path::new(&folder).join(name);
        // SAFETY: NVIDIA's libraries do nothing but set themselves up when they are loaded.
        let library = unsafe { libloading::Library::new(&path) };
        std::mem::forget(library.map_err(|error| format!("{}: {error}", path.display()))?);
    }
    Ok(())
}

/// For one architecture and element type each, so that they are compiled at the same time.
fn compiles(arch: &str, real: &str) {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    if let Err(error) = LOADED.get_or_init(load) {
        panic!("{error}");
    }
    match compile_all(arch, real) {
        Ok(files) => assert!(files.iter().all(|(_, bytes)| *bytes > 1000), "{files:?}"),
        Err(DeviceError::NoNvrtc) if std::env::var("NN_REQUIRE_NVRTC").as_deref() != Ok("1") => {
            eprintln!("skipped: no NVRTC");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn kernels_compile_for_sm_80_in_single_precision() {
    compiles("sm_80", "float");
}

#[test]
fn kernels_compile_for_sm_80_in_double_precision() {
    compiles("sm_80", "double");
}

#[test]
fn kernels_compile_for_sm_90_in_single_precision() {
    compiles("sm_90", "float");
}

#[test]
fn kernels_compile_for_sm_90_in_double_precision() {
    compiles("sm_90", "double");
}
