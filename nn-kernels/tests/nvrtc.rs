//! Every file of kernels compiles for the GPUs that are meant, with the real NVRTC and without a GPU.

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

#[test]
fn kernels_compile_for_every_architecture_and_element_type() {
    let required = std::env::var_os("NN_REQUIRE_NVRTC").is_some_and(|value| value == "1");
    load().unwrap();
    for arch in ["sm_80", "sm_90"] {
        for real in ["float", "double"] {
            match compile_all(arch, real) {
                Ok(files) => {
                    assert!(files.iter().all(|(_, bytes)| *bytes > 1000), "{files:?}");
                }
                Err(nn_kernels::DeviceError::NoNvrtc) if !required => {
                    eprintln!("skipped: no NVRTC");
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}
