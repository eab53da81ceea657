//! Compiles the stand-ins and loads them.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::Missing;

struct Source {
    name: &'static str,
    text: &'static str,
}

macro_rules! sources {
    ($($name:literal),*) => {
        [$(Source { name: $name, text: include_str!(concat!("../native/", $name)) }),*]
    };
}

const SOURCES: [Source; 9] = sources![
    "cuda_emulator.h",
    "kernel_abi.h",
    "libraries.h",
    "runtime.h",
    "runtime.cpp",
    "driver.cpp",
    "nvrtc.cpp",
    "cublaslt.cpp",
    "cudnn.cpp"
];

struct StandIn {
    name: &'static str,
    sources: &'static [&'static str],
}

const STAND_INS: [StandIn; 2] = [
    StandIn { name: "libcuda.so", sources: &["runtime.cpp", "driver.cpp"] },
    StandIn { name: "libnvrtc.so", sources: &["nvrtc.cpp"] },
];

/// Those that a program can do without.
const LIBRARIES: [StandIn; 2] = [
    StandIn { name: "libcublasLt.so", sources: &["cublaslt.cpp"] },
    StandIn { name: "libcudnn.so", sources: &["cudnn.cpp"] },
];

/// Further names under which programs ask for a library. Each is an empty library that needs the real one.
const ALIASES: [(&str, &str); 2] = [("libcuda.so.1", "libcuda.so"), ("libnvrtc.so.13", "libnvrtc.so")];

const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O2",
    "-ftree-vectorize",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    // Its `longjmp` refuses to leave a fiber.
    "-U_FORTIFY_SOURCE",
    "-pthread",
];

/// The folder that holds the compiled stand-ins.
pub(crate) fn build() -> Result<PathBuf, Missing> {
    let root = private_folder()?;
    let compiler = std::env::var("NN_EMU_CXX").unwrap_or_else(|_| "g++".into());
    let finished = root.join(key(&compiler));
    if finished.exists() {
        return Ok(finished);
    }
    // Processes that start at once would all compile. The lock ends with its process, however that ends.
    let lock = root.join("lock");
    let lock = File::create(&lock)
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| unusable(&lock, error))?;
    if finished.exists() {
        return Ok(finished);
    }
    let aside = root.join("unfinished");
    if aside.exists() {
        fs::remove_dir_all(&aside).map_err(|error| unusable(&aside, error))?;
    }
    build_into(&aside, &compiler)?;
    fs::rename(&aside, &finished).map_err(|error| unusable(&finished, error))?;
    drop(lock);
    Ok(finished)
}

fn build_into(folder: &Path, compiler: &str) -> Result<(), Missing> {
    fs::create_dir(folder).map_err(|error| unusable(folder, error))?;
    for source in &SOURCES {
        let path = folder.join(source.name);
        fs::write(&path, source.text).map_err(|error| unusable(&path, error))?;
    }
    std::thread::scope(|scope| {
        let builds = STAND_INS.iter().chain(&LIBRARIES).map(|stand_in| {
            scope.spawn(move || {
                let mut command = start(compiler);
                command.args(FLAGS).args(stand_in.sources).args(["-ldl", "-o", stand_in.name]);
                run(command.arg(format!("-Wl,-soname,{}", stand_in.name)).current_dir(folder), compiler)
            })
        });
        let builds: Vec<_> = builds.collect();
        builds.into_iter().try_for_each(|build| build.join().expect("it only waits for g++"))
    })?;
    for (alias, library) in ALIASES {
        let mut command = start(compiler);
        command.args(["-shared", "-Wl,--no-as-needed", library, "-o", alias]);
        run(command.arg(format!("-Wl,-soname,{alias}")).current_dir(folder), compiler)?;
    }
    Ok(())
}

/// `NN_EMU_CXX` may hold arguments: `ccache g++`.
fn start(compiler: &str) -> Command {
    let mut words = compiler.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

fn run(command: &mut Command, compiler: &str) -> Result<(), Missing> {
    let output = command
        .output()
        .map_err(|error| Missing::Compiler { name: compiler.into(), reason: error.to_string() })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Missing::Compilation { log: String::from_utf8_lossy(&output.stderr).into_owned() })
}

/// The same for the libraries, after [`load`].
pub(crate) fn load_libraries(folder: &Path) -> Result<(), Missing> {
    for library in &LIBRARIES {
        std::mem::forget(open(folder.join(library.name))?);
        let found = open(library.name)?;
        // SAFETY: the symbol is only looked up, never used as what the type says.
        let ours = unsafe { found.get::<*const ()>(b"nn_emu_stand_in\0") }.is_ok();
        std::mem::forget(found);
        if !ours {
            return Err(Missing::Loading { reason: format!("another {} is loaded already", library.name) });
        }
    }
    Ok(())
}

/// How often a function of a library was called.
pub(crate) fn calls(function: &str) -> Option<u64> {
    let function = std::ffi::CString::new(function).ok()?;
    let driver = open("libcuda.so").ok()?;
    // SAFETY: whoever calls this has loaded the emulator, whose symbol is of this type; the name ends in a NUL.
    unsafe {
        let calls =
            driver.get::<unsafe extern "C" fn(*const std::ffi::c_char) -> u64>(b"nn_emu_calls\0").ok()?;
        Some(calls(function.as_ptr()))
    }
}

/// Makes the loader know the stand-ins, by the names in them, for the life of the process.
pub(crate) fn load(folder: &Path) -> Result<(), Missing> {
    let names = STAND_INS.iter().map(|stand_in| stand_in.name).chain(ALIASES.map(|(alias, _)| alias));
    for name in names {
        std::mem::forget(open(folder.join(name))?);
    }
    let found = open("libcuda.so")?;
    // SAFETY: the symbol is only looked up, never used as what the type says.
    let ours = unsafe { found.get::<*const ()>(b"nn_emu_present\0") }.is_ok();
    std::mem::forget(found);
    if !ours {
        return Err(Missing::Loading { reason: "another libcuda.so is loaded already".into() });
    }
    Ok(())
}

fn open(path: impl AsRef<std::ffi::OsStr>) -> Result<Library, Missing> {
    // SAFETY: loading runs the initialisers of the library. These are of `native/`, and touch nothing outside it.
    // Global, as kernels that are loaded later call into it.
    unsafe { Library::open(Some(path.as_ref()), RTLD_NOW | RTLD_GLOBAL) }
        .map_err(|error| Missing::Loading { reason: error.to_string() })
}

/// The folder for all builds. What is in it is loaded, so it must be a folder that nobody else can write to.
fn private_folder() -> Result<PathBuf, Missing> {
    let own = fs::metadata("/proc/self").map_err(|error| unusable(Path::new("/proc/self"), error))?.uid();
    let folder = match std::env::var_os("NN_EMU_CACHE") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::temp_dir().join(format!("nn-cuda-emulator-{own}")),
    };
    let folder = std::path::absolute(&folder).map_err(|error| unusable(&folder, error))?;
    match DirBuilder::new().mode(0o700).recursive(true).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(unusable(&folder, error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder).map_err(|error| unusable(&folder, error))?;
    if !found.is_dir() || found.uid() != own || found.permissions().mode() & 0o022 != 0 {
        return Err(unusable(&folder, "it is not a folder that this user alone can write to"));
    }
    Ok(folder)
}

fn unusable(path: &Path, reason: impl ToString) -> Missing {
    Missing::Folder { path: path.into(), reason: reason.to_string() }
}

/// Names a build by everything that goes into it: FNV-1a of 128 bits.
fn key(compiler: &str) -> String {
    let mut state: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let names = SOURCES.iter().flat_map(|source| [source.name, source.text]);
    for part in names.chain(FLAGS).chain([compiler]) {
        for byte in part.bytes().chain([0]) {
            state = (state ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }
    format!("{state:032x}")
}
