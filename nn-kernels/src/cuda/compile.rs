//! Kernels' sources, and how they become machine code: by NVRTC, the first time that one of a file is asked for.

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};

use crate::DeviceError;

/// Constants that a file is compiled with, where they pay: a tile's or a head's size, never a layer's shape.
pub(super) type Defines = &'static [(&'static str, u32)];

macro_rules! files {
    ($($file:ident $name:literal $variants:expr;)+) => {
        /// A file of kernels, one a family of operations.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(super) enum File {
            $($file,)+
        }

        impl File {
            /// All of them.
            pub(super) const ALL: &[Self] = &[$(Self::$file),+];

            /// Its name.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$file => $name,)+
                }
            }

            /// The sets of constants that it is compiled with.
            const fn variants(self) -> &'static [Defines] {
                match self {
                    $(Self::$file => &$variants,)+
                }
            }

            const fn source(self) -> &'static str {
                match self {
                    $(Self::$file => include_str!(concat!("kernels/", $name)),)+
                }
            }
        }
    };
}

files! {
    Attention "attention.cu" super::attention::HEADS;
    AttentionTensor "attention_tensor.cu" super::attention::TENSOR_HEADS;
    Conv "conv.cu" [&[]];
    Elementwise "elementwise.cu" [&[]];
    GemmTensor "gemm_tensor.cu" [&[]];
    Layout "layout.cu" [&[]];
    Linear "linear.cu" [&[]];
    Loss "loss.cu" [&[]];
    Mlp "mlp.cu" [&[]];
    Norm "norm.cu" [&[]];
    Optim "optim.cu" [&[]];
    Packed "packed.cu" [&[]];
    Pool "pool.cu" [&[]];
    Random "random.cu" [&[]];
    Recurrent "recurrent.cu" [&[]];
    Sums "sums.cu" [&[]];
    Table "table.cu" [&[]];
}

/// What the files include.
const HEADERS: [(&CStr, &str); 6] = [
    (c"attention.cuh", include_str!("kernels/attention.cuh")),
    (c"common.cuh", include_str!("kernels/common.cuh")),
    (c"device.cuh", include_str!("kernels/device.cuh")),
    (c"gemm.cuh", include_str!("kernels/gemm.cuh")),
    (c"linear.cuh", include_str!("kernels/linear.cuh")),
    (c"unary.cuh", include_str!("kernels/unary.cuh")),
];

/// What machine code begins with. What the stand-in for NVRTC of an emulator gives is something else, and is not kept.
const ELF: &[u8] = b"\x7fELF";

/// For elements `float`, `double` or `bf16`.
fn options(arch: &str, elem: &str, defines: Defines) -> Vec<String> {
    // What lies in memory, and what is computed with.
    let (elem, real) = if elem == "bf16" { ("nn::bfloat16 -DNN_BF16=1", "float") } else { (elem, elem) };
    let mut options = vec![format!("--gpu-architecture={arch}"), "--std=c++17".to_owned()];
    options.extend(format!("-DELEM={elem} -DREAL={real}").split(' ').map(str::to_owned));
    options.extend(defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    options
}

/// The machine code of a file's kernels.
fn compile(file: File, arch: &str, options: &[String]) -> Result<Vec<u8>, DeviceError> {
    program(file, arch, options)?.cubin().map_err(|error| DeviceError::Kernel {
        file: file.name().to_owned(),
        arch: arch.to_owned(),
        log: error.to_string(),
    })
}

/// A file's kernels, compiled.
fn program(file: File, arch: &str, options: &[String]) -> Result<Program, DeviceError> {
    let failed = |log: String| DeviceError::Kernel {
        file: file.name().to_owned(),
        arch: arch.to_owned(),
        log: log.trim_end().to_owned(),
    };
    let text =
        |text: &str| CString::new(text).map_err(|_| failed("a NUL in its source or its options".to_owned()));
    let (source, name) = (text(file.source())?, text(file.name())?);
    let headers = HEADERS.iter().map(|(_, header)| text(header)).collect::<Result<Vec<_>, _>>()?;
    let headers: Vec<_> = headers.iter().map(|header| header.as_ptr()).collect();
    let names = HEADERS.map(|(name, _)| name.as_ptr());
    let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
    let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();

    let mut program = std::ptr::null_mut();
    // SAFETY: NVRTC is there, as whoever calls this has seen. All texts end in a NUL and outlive the call.
    let made = unsafe {
        sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            headers.len() as i32,
            headers.as_ptr(),
            names.as_ptr(),
        )
    };
    made.result().map_err(|error| failed(error.to_string()))?;
    let program = Program(program);
    // SAFETY: as above; the program exists until it is dropped.
    let compiled = unsafe { sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
    if let Err(error) = compiled.result() {
        return Err(failed(program.log().unwrap_or_else(|| error.to_string())));
    }
    Ok(program)
}

/// A program that NVRTC knows.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> Option<String> {
        let mut len = 0;
        // SAFETY: the program exists, and there is room for as many bytes as NVRTC asks for.
        unsafe {
            sys::nvrtcGetProgramLogSize(self.0, &mut len).result().ok()?;
            let mut log = vec![0_u8; len];
            sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast::<c_char>()).result().ok()?;
            let log = CStr::from_bytes_until_nul(&log).ok()?;
            Some(log.to_string_lossy().into_owned())
        }
    }

    fn ptx(&self) -> Result<String, cudarc::nvrtc::result::NvrtcError> {
        let mut len = 0;
        // SAFETY: as above.
        unsafe {
            sys::nvrtcGetPTXSize(self.0, &mut len).result()?;
            let mut text = vec![0_u8; len];
            sys::nvrtcGetPTX(self.0, text.as_mut_ptr().cast::<c_char>()).result()?;
            Ok(String::from_utf8_lossy(text.strip_suffix(&[0]).unwrap_or(&text)).into_owned())
        }
    }

    fn cubin(&self) -> Result<Vec<u8>, cudarc::nvrtc::result::NvrtcError> {
        let mut len = 0;
        // SAFETY: as above.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut len).result()?;
            let mut image = vec![0_u8; len];
            sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast::<c_char>()).result()?;
            Ok(image)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it exists, and nobody uses it any more. There is nothing to do about an error.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Whether NVRTC is on this machine.
pub(super) fn is_present() -> bool {
    // SAFETY: it looks for a library and opens it.
    unsafe { sys::is_culib_present() }
}

/// What NVRTC made of a file of kernels.
#[doc(hidden)]
#[derive(Debug)]
pub struct Compiled {
    /// The file.
    pub file: &'static str,
    /// The constants that it was compiled with.
    pub defines: &'static [(&'static str, u32)],
    /// What the compiler says of each kernel's registers and memory.
    pub log: String,
    /// The instructions in PTX.
    pub ptx: String,
    /// The machine code.
    pub cubin: Vec<u8>,
}

/// Compiles every file of kernels, with each of its sets of constants, for an architecture such as `sm_90` and for
/// elements `float`, `double` or `bf16`.
///
/// # Errors
/// There is no NVRTC, or a file does not compile.
#[doc(hidden)]
pub fn compile_all(arch: &str, elem: &str) -> Result<Vec<Compiled>, DeviceError> {
    if !is_present() {
        return Err(DeviceError::NoNvrtc);
    }
    let all = File::ALL.iter().flat_map(|file| file.variants().iter().map(|defines| (*file, *defines)));
    all.map(|(file, defines)| {
        let mut options = options(arch, elem, defines);
        options.push("--ptxas-options=-v".to_owned());
        let program = program(file, arch, &options)?;
        let log = program.log().unwrap_or_default();
        let failed =
            |_| DeviceError::Kernel { file: file.name().to_owned(), arch: arch.to_owned(), log: log.clone() };
        let (ptx, cubin) = (program.ptx().map_err(failed)?, program.cubin().map_err(failed)?);
        Ok(Compiled { file: file.name(), defines, log, ptx, cubin })
    })
    .collect()
}

/// Compiles files for one device, and keeps what it made on disk.
pub(super) struct Compiler {
    arch: String,
    elem: &'static str,
    /// NVRTC's version and the device's name: code of an emulator must not be mistaken for a GPU's.
    made_by: String,
    folder: Option<PathBuf>,
}

impl Compiler {
    pub(super) fn new(arch: String, elem: &'static str, device: &str) -> Result<Self, DeviceError> {
        if !is_present() {
            return Err(DeviceError::NoNvrtc);
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: NVRTC is there; it writes two numbers.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(|error| DeviceError::Cuda {
            doing: "asking NVRTC".to_owned(),
            error: error.to_string(),
        })?;
        Ok(Self { arch, elem, made_by: format!("{major}.{minor} {device}"), folder: folder() })
    }

    /// The machine code of a file's kernels, perhaps from the disk.
    pub(super) fn image(&self, file: File, defines: Defines) -> Result<Image, DeviceError> {
        let options = options(&self.arch, self.elem, defines);
        let path = self.folder.as_ref().map(|folder| folder.join(self.key(file, &options)));
        if let Some(code) = path.as_deref().and_then(read) {
            return Ok(Image { code, kept: true });
        }
        self.compile(file, &options, path.as_deref())
    }

    /// The same, whatever the disk holds: what was there did not load.
    pub(super) fn fresh_image(&self, file: File, defines: Defines) -> Result<Image, DeviceError> {
        let options = options(&self.arch, self.elem, defines);
        let path = self.folder.as_ref().map(|folder| folder.join(self.key(file, &options)));
        self.compile(file, &options, path.as_deref())
    }

    fn compile(&self, file: File, options: &[String], path: Option<&Path>) -> Result<Image, DeviceError> {
        let mut code = compile(file, &self.arch, options)?;
        if let Some(path) = path.filter(|_| code.starts_with(ELF)) {
            // Without the file the kernels are compiled again next time.
            let _ = write(path, &code);
        }
        // What is a text to the driver ends in a NUL.
        code.push(0);
        Ok(Image { code, kept: false })
    }

    /// The name of a file's machine code in the cache.
    fn key(&self, file: File, options: &[String]) -> String {
        let mut all = Vec::new();
        let parts = [file.name(), file.source(), &self.made_by].into_iter();
        let headers = HEADERS.iter().map(|(_, header)| *header);
        for part in parts.chain(headers).chain(options.iter().map(String::as_str)) {
            all.extend_from_slice(&(part.len() as u64).to_le_bytes());
            all.extend_from_slice(part.as_bytes());
        }
        let name: String = Sha256::digest(&all).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name}.cubin")
    }
}

/// Machine code.
pub(super) struct Image {
    pub(super) code: Vec<u8>,
    /// It was on the disk.
    pub(super) kept: bool,
}

/// Where machine code is kept.
fn folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || {
        let home = || variable("HOME").map(|home| home.join(".cache"));
        variable("XDG_CACHE_HOME").or_else(|| variable("LOCALAPPDATA")).or_else(home)
    };
    variable("NN_CUDA_CACHE").or_else(|| cache().map(|cache| cache.join("nn").join("cuda")))
}

/// What [`write`] wrote, if it is all there.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let (digest, code) = bytes.split_at_checked(32)?;
    (Sha256::digest(code)[..] == *digest).then(|| {
        let mut code = code.to_vec();
        code.push(0);
        code
    })
}

/// Writes code and its digest. Others may write the same file at the same time, or read it.
fn write(path: &Path, code: &[u8]) -> std::io::Result<()> {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let aside = path.with_extension(format!("{}-{count}", std::process::id()));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut bytes = Sha256::digest(code).to_vec();
    bytes.extend_from_slice(code);
    std::fs::write(&aside, bytes)?;
    std::fs::rename(&aside, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&aside);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_unless_it_was_damaged() {
        let folder = std::env::temp_dir().join(format!("nn-cuda-cache-{}", std::process::id()));
        let path = folder.join("a.cubin");
        write(&path, b"code").unwrap();
        assert_eq!(read(&path).unwrap(), b"code\0");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read(&path), None);
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(read(&path), None);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left aside");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn all_that_code_depends_on_is_in_its_name() {
        let compiler = |arch: &str, elem, device: &str| Compiler {
            arch: arch.to_owned(),
            elem,
            made_by: device.to_owned(),
            folder: None,
        };
        let key = |compiler: &Compiler, defines| {
            compiler.key(File::Elementwise, &options(&compiler.arch, compiler.elem, defines))
        };
        let first = compiler("sm_90", "float", "13.0 a");
        let mut keys = vec![
            key(&first, &[]),
            key(&first, &[("TILE", 1)]),
            key(&compiler("sm_80", "float", "13.0 a"), &[]),
            key(&compiler("sm_90", "double", "13.0 a"), &[]),
            key(&compiler("sm_90", "bf16", "13.0 a"), &[]),
            key(&compiler("sm_90", "float", "13.1 a"), &[]),
        ];
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 6);
    }
}
