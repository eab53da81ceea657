//! Every file of kernels compiles for the GPUs that are meant, with the real NVRTC and without a GPU.

use std::sync::OnceLock;

use nn_kernels::DeviceError;
use nn_kernels::cuda::{Compiled, compile_all};

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

/// Files whose kernels keep in registers all that they can: none of it may lie in memory instead.
fn is_tight(file: &Compiled) -> bool {
    ["attention.cu", "attention_tensor.cu", "gemm_tensor.cu", "mlp.cu"].contains(&file.file)
}

/// Kernels that are there for their use of tensor cores.
fn is_for_tensor_cores(file: &Compiled, kernel: &str) -> bool {
    ["attention_tensor.cu", "gemm_tensor.cu"].contains(&file.file) && !kernel.ends_with("delta")
}

/// The number right before a word, or 0.
fn number_before(text: &str, word: &str) -> usize {
    let before = text.find(word).map_or("", |at| text[..at].trim_end());
    let digits = before.len() - before.bytes().rev().take_while(u8::is_ascii_digit).count();
    before[digits..].parse().unwrap_or(0)
}

/// The number right after a word, if that is there.
fn number_after(text: &str, word: &str) -> Option<usize> {
    let after = text[text.find(word)? + word.len()..].trim_start();
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    after[..digits].parse().ok()
}

/// A text's parts from `start` on, each with the name that follows it up to `end`.
fn parts<'a>(text: &'a str, start: &'a str, end: char) -> impl Iterator<Item = (&'a str, &'a str)> {
    text.split(start).skip(1).filter_map(move |part| part.split_once(end))
}

/// Nothing is spilled, blocks fit a multiprocessor, and tensor cores are used where they are meant to be.
fn check(file: &Compiled, arch: &str, elem: &str) {
    let Compiled { file: name, defines, log, ptx, cubin } = file;
    assert!(cubin.len() > 1000, "{name}");
    let mut kernels = 0;
    for (kernel, log) in parts(log, "Compiling entry function '", '\'') {
        let what = format!("{name} {defines:?} {kernel} for {arch}");
        kernels += 1;
        let (_, ptx) = parts(ptx, ".visible .entry ", '(').find(|(name, _)| *name == kernel).expect(&what);
        let threads = number_after(ptx, ".maxntid").unwrap_or(256);
        let blocks = number_after(ptx, ".minnctapersm").unwrap_or(1);
        let (registers, shared) = (number_before(log, " registers"), number_before(log, " bytes smem"));
        assert!(registers > 0, "{what}: {log}");
        // Registers are given out in eights.
        assert!(
            registers.next_multiple_of(8) * threads * blocks <= 1 << 16,
            "{what}: {registers} of {threads} threads"
        );
        assert!(shared <= 48 << 10, "{what}: {shared} bytes of shared memory");
        let spilled = number_before(log, " bytes spill stores") + number_before(log, " bytes spill loads");
        let kept = spilled + number_before(log, " bytes stack frame");
        assert!(kept == 0 || !is_tight(file), "{what}: {log}");
        let product = match elem {
            "bf16" => "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            _ => "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        };
        let products = ptx.matches(product).count();
        assert!(products > 0 || !is_for_tensor_cores(file, kernel), "{what}: no product on tensor cores");
    }
    assert!(kernels > 0, "{name}: {log}");
    if let Some(disassembler) = std::env::var_os("NN_NVDISASM") {
        check_machine_code(file, arch, elem, &disassembler);
    }
}

/// The same of the machine code, by NVIDIA's `nvdisasm`.
fn check_machine_code(file: &Compiled, arch: &str, elem: &str, disassembler: &std::ffi::OsStr) {
    let head = file.defines.iter().map(|(name, value)| format!("-{name}{value}")).collect::<String>();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = path.join(format!("{}{head}-{arch}-{elem}.cubin", file.file));
    std::fs::write(&path, &file.cubin).unwrap();
    let output = std::process::Command::new(disassembler).arg("-c").arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(&path).unwrap();
    let code = String::from_utf8_lossy(&output.stdout);
    for (kernel, code) in parts(&code, "\n.text.", ':') {
        let what = format!("{} {:?} {kernel} for {arch}", file.file, file.defines);
        let product = if elem == "bf16" { "HMMA.16816.F32.BF16" } else { "HMMA.1688.F32.TF32" };
        assert!(code.contains(product) || !is_for_tensor_cores(file, kernel), "{what}: no HMMA");
        let local = code.contains(" STL") || code.contains(" LDL");
        assert!(!local || !is_tight(file), "{what}: something is kept in local memory");
    }
}

/// For one architecture and element type each, so that they are compiled at the same time.
fn compiles(arch: &str, elem: &str) {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    if let Err(error) = LOADED.get_or_init(load) {
        panic!("{error}");
    }
    match compile_all(arch, elem) {
        Ok(files) => files.iter().for_each(|file| check(file, arch, elem)),
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
fn kernels_compile_for_sm_90_in_single_precision() {
    compiles("sm_90", "float");
}

#[test]
fn kernels_compile_for_sm_80_in_bfloat16() {
    compiles("sm_80", "bf16");
}

#[test]
fn kernels_compile_for_sm_90_in_bfloat16() {
    compiles("sm_90", "bf16");
}

#[test]
fn kernels_compile_for_sm_90_in_double_precision() {
    compiles("sm_90", "double");
}
