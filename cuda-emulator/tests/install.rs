//! Getting the emulator, or being told why there is none.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{device, in_child};

/// A folder that does not exist yet, for a build of its own.
fn fresh_cache(name: &str) -> PathBuf {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&cache);
    cache
}

#[test]
fn without_a_compiler_tests_are_skipped_unless_the_emulator_is_required() {
    let test = "without_a_compiler_tests_are_skipped_unless_the_emulator_is_required";
    let cache = fresh_cache("no-compiler");
    let body = || match std::panic::catch_unwind(nn_cuda_emulator::installed_or_skip) {
        Ok(installed) => assert!(!installed),
        Err(_) => eprintln!("it panicked"),
    };
    for (required, panics) in [("0", false), ("1", true)] {
        let environment = [
            ("NN_EMU_CXX", "no-such-compiler"),
            ("NN_EMU_CACHE", cache.to_str().unwrap()),
            ("NN_REQUIRE_EMULATOR", required),
        ];
        let Some(stderr) = in_child(test, &environment, body) else { return };
        assert!(stderr.contains("no-such-compiler") && stderr.contains("install g++"), "{stderr}");
        assert_eq!(stderr.contains("it panicked"), panics, "{stderr}");
        assert_eq!(stderr.contains("skipped: "), !panics, "{stderr}");
    }
    std::fs::remove_dir_all(cache).unwrap();
}

#[test]
fn threads_and_processes_can_install_at_once() {
    let test = "threads_and_processes_can_install_at_once";
    if std::env::var_os("NN_EMU_TEST_CHILD").is_some() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| nn_cuda_emulator::install().unwrap());
            }
        });
        let device = device().unwrap();
        let source = r#"extern "C" __global__ void k() {}"#;
        device.kernel(source, "k");
        return;
    }
    if device().is_none() {
        return;
    }
    let cache = fresh_cache("at-once");
    let start = |_| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact"]).env("NN_EMU_TEST_CHILD", "1").env("NN_EMU_CACHE", &cache);
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..3).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let folders = std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
    let builds: Vec<_> = folders.filter(|path| path.is_dir()).collect();
    assert_eq!(builds.len(), 1, "one build, and nothing left beside it: {builds:?}");
    let kernels: Vec<_> = std::fs::read_dir(builds[0].join("kernels")).unwrap().collect();
    assert_eq!(kernels.len(), 1, "{kernels:?}");
    std::fs::remove_dir_all(cache).unwrap();
}

#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let test = "a_folder_that_others_can_write_to_is_refused";
    let cache = fresh_cache("open");
    let body = || eprintln!("{}", nn_cuda_emulator::install().unwrap_err());
    if std::env::var_os("NN_EMU_TEST_CHILD").is_none() {
        std::fs::create_dir_all(&cache).unwrap();
        std::fs::set_permissions(&cache, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let Some(stderr) = in_child(test, &[("NN_EMU_CACHE", cache.to_str().unwrap())], body) else { return };
    assert!(stderr.contains("NN_EMU_CACHE"), "{stderr}");
    std::fs::remove_dir_all(cache).unwrap();
}
