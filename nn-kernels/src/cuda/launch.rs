//! How operations get to the GPU: recorded in a list, which is submitted as a whole and, if it comes again, replayed as
//! a graph.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaStream, sys};

use super::compile::{Compiler, Defines, File};
use super::libraries::{Call, Libraries, WORKSPACE, failed};
use super::memory::{View, ViewMut};
use super::mlp::Chain;
use super::route::Forced;
use super::{blas, dnn};
use crate::ops::Conv2dSpec;
use crate::{DeviceError, Pod};

/// Threads of a block where nothing else is said.
pub(super) const THREADS: usize = 256;
/// Blocks that keep the largest GPU busy; kernels go through what is left in strides.
const BLOCKS: usize = 4096;
/// Graphs that are kept.
const GRAPHS: usize = 16;
/// Lists that were seen once, of which a second one becomes a graph.
const SEEN: usize = 64;
/// Launches from which on a graph is worth its making.
const WORTH: usize = 2;
/// Numbers of a list that may change while it stays the same.
const LIVE: usize = 8192;
/// Bytes of scratch to begin with: most operations need no more.
const SCRATCH: usize = 1 << 20;
/// Dynamic shared memory that a kernel may have without asking.
const SHARED: u32 = 48 * 1024;

/// A kernel: of which file, compiled with which constants, and its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kernel {
    file: File,
    defines: Defines,
    name: &'static str,
}

impl Kernel {
    pub(super) const fn new(file: File, name: &'static str) -> Self {
        Self { file, defines: &[], name }
    }

    /// The same, compiled with these constants.
    pub(super) const fn with(self, defines: Defines) -> Self {
        Self { defines, ..self }
    }
}

/// How many blocks of how many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    blocks: [u32; 3],
    threads: u32,
    shared: u32,
}

impl Grid {
    /// Threads enough for `n` elements, or so many that each takes several.
    pub(super) fn flat(n: usize) -> Self {
        Self::rows(n.div_ceil(THREADS), THREADS)
    }

    /// A block for each of `n` rows, or so many that each takes several.
    pub(super) fn rows(n: usize, threads: usize) -> Self {
        Self::blocks([n.min(BLOCKS), 1, 1], threads)
    }

    /// Exactly these blocks. Panics if they are more than a GPU can have.
    pub(super) fn blocks(blocks: [usize; 3], threads: usize) -> Self {
        let [x, y, z] = blocks;
        assert!(x < 1 << 31 && y < 1 << 16 && z < 1 << 16 && threads <= 1024, "a grid of {blocks:?} blocks");
        Self { blocks: [x as u32, y as u32, z as u32], threads: threads as u32, shared: 0 }
    }

    /// With so many bytes of dynamic shared memory.
    pub(super) fn shared(self, bytes: usize) -> Self {
        Self { shared: bytes as u32, ..self }
    }

    fn is_empty(&self) -> bool {
        self.blocks.contains(&0)
    }
}

/// What a kernel is called with. Sizes are `long long` there, numbers `double`, flags and codes `int`.
pub(super) trait Argument {
    fn push(self, to: &mut Arguments<'_>);
}

/// Where arguments go.
pub(super) struct Arguments<'a> {
    list: &'a mut List,
    live: &'a mut Vec<u64>,
    live_at: u64,
}

impl Arguments<'_> {
    fn word(&mut self, word: u64) {
        self.list.starts.push(self.list.words.len() as u32);
        self.list.words.push(word);
    }
}

impl<T: Pod> Argument for View<'_, T> {
    fn push(self, to: &mut Arguments<'_>) {
        to.word(self.address());
    }
}

impl<T: Pod> Argument for &ViewMut<'_, T> {
    fn push(self, to: &mut Arguments<'_>) {
        to.word(self.address());
    }
}

/// Null where there is none.
impl<A: Argument> Argument for Option<A> {
    fn push(self, to: &mut Arguments<'_>) {
        match self {
            Some(argument) => argument.push(to),
            None => to.word(0),
        }
    }
}

impl Argument for usize {
    fn push(self, to: &mut Arguments<'_>) {
        to.word(self as u64);
    }
}

impl Argument for u64 {
    fn push(self, to: &mut Arguments<'_>) {
        to.word(self);
    }
}

impl Argument for u32 {
    fn push(self, to: &mut Arguments<'_>) {
        to.word(self.into());
    }
}

impl Argument for bool {
    fn push(self, to: &mut Arguments<'_>) {
        to.word(self.into());
    }
}

impl Argument for f64 {
    fn push(self, to: &mut Arguments<'_>) {
        to.word(self.to_bits());
    }
}

/// A place in the device's memory that no view tells of.
#[derive(Clone, Copy)]
pub(super) struct Address(pub(super) u64);

impl Address {
    /// So many bytes further on.
    pub(super) fn after(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

impl Argument for Address {
    fn push(self, to: &mut Arguments<'_>) {
        to.word(self.0);
    }
}

/// A number that changes from step to step: the kernel gets a pointer to it, so that the arguments stay the same.
#[derive(Clone, Copy)]
pub(super) enum Live {
    Real(f64),
    Word(u64),
}

impl Argument for Live {
    fn push(self, to: &mut Arguments<'_>) {
        let at = to.live_at + 8 * to.live.len() as u64;
        to.live.push(match self {
            Self::Real(real) => real.to_bits(),
            Self::Word(word) => word,
        });
        to.word(at);
    }
}

/// A struct of numbers of 8 bytes each.
pub(super) struct Struct<'a, T>(pub(super) &'a T);

impl<T: bytemuck::Pod> Argument for Struct<'_, T> {
    fn push(self, to: &mut Arguments<'_>) {
        to.list.starts.push(to.list.words.len() as u32);
        to.list.words.extend_from_slice(bytemuck::cast_slice(std::slice::from_ref(self.0)));
    }
}

/// A kernel that was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Function(sys::CUfunction);

// SAFETY: a handle, which the driver lets every thread use.
unsafe impl Send for Function {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Command {
    work: Work,
    /// Where its arguments end in [`List::starts`].
    arguments: u32,
}

/// What a command does. With its arguments it is all that there is to know: a plan of a library stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Work {
    Kernel { function: Function, blocks: [u32; 3], threads: u32, shared: u32 },
    Library(Call),
}

/// Launches, in their order, with all that they are called with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct List {
    commands: Vec<Command>,
    /// Where each argument starts in `words`.
    starts: Vec<u32>,
    words: Vec<u64>,
}

impl List {
    fn clear(&mut self) {
        self.commands.clear();
        self.starts.clear();
        self.words.clear();
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Launches one after the other. `room` is for pointers to a command's arguments.
    fn launch(
        &mut self,
        stream: sys::CUstream,
        room: &mut Vec<*mut c_void>,
        libraries: &Libraries,
    ) -> Result<(), DeviceError> {
        let mut first = 0;
        for command in &self.commands {
            let last = command.arguments as usize;
            let starts = &self.starts[first..last];
            first = last;
            let (function, [x, y, z], threads, shared) = match command.work {
                Work::Kernel { function, blocks, threads, shared } => (function, blocks, threads, shared),
                Work::Library(call) => {
                    // Each argument is one word.
                    let at = starts.first().map_or(0, |&at| at as usize);
                    libraries.run(call, &self.words[at..at + starts.len()], stream)?;
                    continue;
                }
            };
            room.clear();
            room.extend(starts.iter().map(|&at| (&raw mut self.words[at as usize]).cast::<c_void>()));
            // SAFETY: the function is of a module that stays loaded. Whoever recorded the launch gave what the kernel
            // is declared with; views reach no further than the memory that they were cut from, and before any of it is
            // freed the list is submitted and done.
            unsafe { result::launch_kernel(function.0, (x, y, z), (threads, 1, 1), shared, stream, room) }
                .map_err(driver("launching kernels"))?;
        }
        Ok(())
    }
}

/// A list that was made a graph.
struct Graph {
    list: List,
    graph: sys::CUgraphExec,
    /// When it was last used.
    used: u64,
}

// SAFETY: a handle, which the driver lets every thread use, one at a time.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it exists, and nobody else has it. What runs of it goes on.
        let _ = unsafe { result::graph::exec_destroy(self.graph) };
    }
}

/// Pointers to arguments, while a list is launched. Nothing reads them at other times.
#[derive(Default)]
struct Room(Vec<*mut c_void>);

// SAFETY: the pointers in it are written anew for each launch.
unsafe impl Send for Room {}

/// What changes as a device is used.
struct State {
    /// How many `together`s are under way.
    depth: usize,
    list: List,
    /// What the last launch of the list is, if it may go on as one.
    chain: Option<Chain>,
    live: Vec<u64>,
    room: Room,
    modules: HashMap<(File, Defines), Result<Module, DeviceError>>,
    /// Each with the dynamic shared memory that it may have.
    functions: HashMap<Kernel, (Function, u32)>,
    graphs: Vec<Graph>,
    seen: VecDeque<u64>,
    /// Counts submissions.
    time: u64,
    /// Counts graphs that were replayed.
    replays: u64,
    /// Counts launches, of graphs too.
    launches: u64,
    scratch: (u64, usize),
    libraries: Libraries,
    error: Option<DeviceError>,
}

/// A module that stays loaded as long as the device exists.
struct Module(sys::CUmodule);

// SAFETY: a handle, which the driver lets every thread use.
unsafe impl Send for Module {}

/// The GPU, of which handles share one.
pub(super) struct Core {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    pub(super) forced: Forced,
    pub(super) graphs: AtomicBool,
    compiler: Compiler,
    /// What [`Fault`](super::Fault) is on the device.
    pub(super) fault: u64,
    live: u64,
    state: Mutex<State>,
}

pub(super) fn driver(doing: &str) -> impl Fn(DriverError) -> DeviceError {
    move |error| DeviceError::Cuda { doing: doing.to_owned(), error: error.to_string() }
}

impl Core {
    pub(super) fn new(
        context: Arc<CudaContext>,
        stream: Arc<CudaStream>,
        compiler: Compiler,
        forced: Forced,
        graphs: bool,
        libraries: [bool; 2],
    ) -> Result<Self, DeviceError> {
        let state = State {
            depth: 0,
            list: List::default(),
            chain: None,
            live: Vec::with_capacity(LIVE),
            room: Room::default(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: Vec::new(),
            seen: VecDeque::new(),
            time: 0,
            replays: 0,
            launches: 0,
            scratch: (0, 0),
            libraries: Libraries::default(),
            error: None,
        };
        let mut core = Self {
            context,
            stream,
            forced,
            graphs: AtomicBool::new(graphs),
            compiler,
            fault: 0,
            live: 0,
            state: Mutex::new(state),
        };
        core.fault = core.alloc(super::Fault::BYTES)?;
        core.live = core.alloc(8 * LIVE)?;
        let scratch = (core.alloc(SCRATCH)?, SCRATCH);
        core.lock().scratch = scratch;
        core.context.bind_to_thread().map_err(driver("choosing the context"))?;
        let mut libraries = Libraries::open(forced, libraries, core.stream.cu_stream())?;
        if libraries.blas.is_some() || libraries.dnn.is_some() {
            libraries.workspace = core.alloc(WORKSPACE)?;
        }
        core.lock().libraries = libraries;
        Ok(core)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records launches of one operation, which no other thread's come between.
    pub(super) fn record(&self) -> Record<'_> {
        Record { core: self, state: self.lock() }
    }

    /// Zeroed memory.
    pub(super) fn alloc(&self, bytes: usize) -> Result<u64, DeviceError> {
        // So that no thread is making a graph of what comes on the stream.
        let _state = self.lock();
        self.alloc_locked(bytes)
    }

    /// The same, by whoever has the lock.
    fn alloc_locked(&self, bytes: usize) -> Result<u64, DeviceError> {
        if bytes == 0 {
            return Ok(0);
        }
        let made = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: the context is current. The memory is new, so nothing reads it before it is zeroed.
            unsafe {
                let at = result::malloc_sync(bytes)?;
                result::memset_d8_async(at, 0, bytes, self.stream.cu_stream())?;
                Ok(at)
            }
        });
        made.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory { bytes },
            _ => driver("allocating memory")(error),
        })
    }

    /// Frees memory after all that was asked of it is done.
    pub(super) fn free(&self, at: u64) {
        if at != 0 {
            let mut state = self.lock();
            self.submit(&mut state);
            self.note(&mut state, "freeing memory", || {
                self.stream.synchronize()?;
                // SAFETY: it was allocated by `alloc`, nothing that was submitted is left undone, and whoever calls
                // this gives it up.
                unsafe { result::free_sync(at) }
            });
        }
    }

    /// Submits what was recorded, and then does something on the stream.
    pub(super) fn on_stream(&self, doing: &str, work: impl FnOnce(sys::CUstream) -> Result<(), DriverError>) {
        let mut state = self.lock();
        self.submit(&mut state);
        self.note(&mut state, doing, || work(self.stream.cu_stream()));
    }

    /// Does something with the context current, and keeps its error if it is the first.
    fn note(&self, state: &mut State, doing: &str, work: impl FnOnce() -> Result<(), DriverError>) {
        if let Err(error) = self.context.bind_to_thread().and_then(|()| work()) {
            state.error.get_or_insert_with(|| driver(doing)(error));
        }
    }

    /// The first thing that went wrong.
    pub(super) fn take_error(&self) -> Option<DeviceError> {
        self.lock().error.take()
    }

    pub(super) fn enter(&self) {
        self.lock().depth += 1;
    }

    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.depth -= 1;
        if state.depth == 0 {
            self.submit(&mut state);
        }
    }

    /// How many times a graph was replayed.
    pub(super) fn replays(&self) -> u64 {
        self.lock().replays
    }

    /// How many launches were submitted.
    pub(super) fn launches(&self) -> u64 {
        self.lock().launches
    }

    fn submit(&self, state: &mut State) {
        if state.list.commands.is_empty() {
            return;
        }
        // After an error there is no telling what kernels would read.
        if state.error.is_none() {
            let State { list, live, room, graphs, seen, time, replays, launches, libraries, .. } = state;
            *time += 1;
            *launches += list.commands.len() as u64;
            let failed = driver("launching kernels");
            let submitted = self.context.bind_to_thread().map_err(&failed).and_then(|()| {
                let stream = self.stream.cu_stream();
                if !live.is_empty() {
                    // SAFETY: there are `LIVE` words at the address, no fewer than in the list. Memory that is not
                    // pinned has been read when the call returns.
                    unsafe { result::memcpy_htod_async(self.live, &live[..], stream) }.map_err(&failed)?;
                }
                if !self.graphs.load(Ordering::Relaxed) || list.commands.len() < WORTH {
                    return list.launch(stream, &mut room.0, libraries);
                }
                if let Some(known) = graphs.iter_mut().find(|known| known.list == *list) {
                    known.used = *time;
                    *replays += 1;
                    // SAFETY: the graph and the stream exist; for its launches see `List::launch`.
                    return unsafe { result::graph::launch(known.graph, stream) }.map_err(&failed);
                }
                // Only lists without a graph are hashed, which takes longer than to compare them. Where two that differ
                // hash alike, the second is made a graph somewhat early.
                let hash = list.digest();
                if !seen.contains(&hash) {
                    if seen.len() == SEEN {
                        seen.pop_front();
                    }
                    seen.push_back(hash);
                    return list.launch(stream, &mut room.0, libraries);
                }
                let graph = capture(list, stream, &mut room.0, libraries)?;
                if graphs.len() == GRAPHS
                    && let Some(oldest) = (0..GRAPHS).min_by_key(|&i| graphs[i].used)
                {
                    graphs.swap_remove(oldest);
                }
                graphs.push(Graph { list: list.clone(), graph, used: *time });
                // SAFETY: as above.
                unsafe { result::graph::launch(graph, stream) }.map_err(&failed)
            });
            if let Err(error) = submitted {
                state.error = Some(error);
            }
        }
        state.list.clear();
        state.chain = None;
        state.live.clear();
    }

    /// The kernel's handle and how much dynamic shared memory it may have, or none if it does not compile: that is kept
    /// as an error each time.
    fn function(&self, state: &mut State, kernel: Kernel) -> Option<(Function, u32)> {
        if let Some(known) = state.functions.get(&kernel) {
            return Some(*known);
        }
        let modules = state.modules.entry((kernel.file, kernel.defines));
        let module = modules.or_insert_with(|| self.load(kernel.file, kernel.defines));
        let found = match module {
            Err(error) => Err(error.clone()),
            Ok(module) => {
                let name = CString::new(kernel.name).expect("a name without a NUL");
                // SAFETY: the module stays loaded.
                let found = unsafe { result::module::get_function(module.0, name) };
                found.map_err(driver(&format!("looking for the kernel {}", kernel.name)))
            }
        };
        match found {
            Ok(function) => {
                state.functions.insert(kernel, (Function(function), SHARED));
                Some((Function(function), SHARED))
            }
            Err(error) => {
                state.error.get_or_insert(error);
                None
            }
        }
    }

    fn load(&self, file: File, defines: Defines) -> Result<Module, DeviceError> {
        self.context.bind_to_thread().map_err(driver("choosing the context"))?;
        // SAFETY: an image ends in a NUL, and is a file of machine code or what the driver's own compiler made.
        let load = |code: &[u8]| unsafe { result::module::load_data(code.as_ptr().cast()) };
        let image = self.compiler.image(file, defines)?;
        let loaded = match load(&image.code) {
            Err(_) if image.kept => load(&self.compiler.fresh_image(file, defines)?.code),
            loaded => loaded,
        };
        loaded.map(Module).map_err(driver("loading kernels"))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: nobody has the device any more, so nothing is recorded or submitted; what runs is waited for. The
        // memory is the device's own. There is nothing to do about an error.
        let _ = self.context.bind_to_thread().and_then(|()| self.stream.synchronize());
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.graphs.clear();
        let libraries = std::mem::take(&mut state.libraries);
        for at in [self.fault, self.live, state.scratch.0, libraries.workspace] {
            if at != 0 {
                // SAFETY: as above.
                let _ = unsafe { result::free_sync(at) };
            }
        }
        for module in state.modules.drain().filter_map(|(_, module)| module.ok()) {
            // SAFETY: its kernels are done, and nobody can launch one any more.
            let _ = unsafe { result::module::unload(module.0) };
        }
    }
}

/// Makes a list a graph, without running it.
fn capture(
    list: &mut List,
    stream: sys::CUstream,
    room: &mut Vec<*mut c_void>,
    libraries: &Libraries,
) -> Result<sys::CUgraphExec, DeviceError> {
    let failed = driver("launching kernels");
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream exists, and only this thread uses it, for it holds the lock. The capture is ended whatever
    // happens, and a graph that was captured is destroyed once, when it has been made executable.
    unsafe {
        result::stream::begin_capture(stream, mode).map_err(&failed)?;
        let launched = list.launch(stream, room, libraries);
        let graph = result::stream::end_capture(stream);
        launched?;
        let graph = graph.map_err(&failed)?;
        let made = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
        result::graph::destroy(graph).map_err(&failed)?;
        made.map_err(&failed)
    }
}

/// The launches of one operation. They are submitted when it is dropped, unless they belong to something larger.
pub(super) struct Record<'c> {
    core: &'c Core,
    state: MutexGuard<'c, State>,
}

impl<'c> Record<'c> {
    /// Room for what one launch of this operation hands to the next, `bytes` at an address that is a multiple of 256.
    /// The next call gives the same room.
    pub(super) fn scratch(&mut self, bytes: usize) -> Address {
        let (at, room) = self.state.scratch;
        if bytes <= room {
            return Address(at);
        }
        self.core.submit(&mut self.state);
        let larger = bytes.next_power_of_two();
        match self.core.alloc_locked(larger) {
            Ok(new) => {
                self.core.note(&mut self.state, "freeing memory", || {
                    self.core.stream.synchronize()?;
                    // SAFETY: no launch that was recorded with it is left undone; a graph that knows it is replayed
                    // only if a list names the same address again.
                    if at != 0 { unsafe { result::free_sync(at) } } else { Ok(()) }
                });
                self.state.scratch = (new, larger);
                Address(new)
            }
            Err(error) => {
                self.state.error.get_or_insert(error);
                Address(0)
            }
        }
    }

    /// Where kernels tell of an index out of range, and see that there was one.
    pub(super) fn fault(&self) -> Address {
        Address(self.core.fault)
    }

    /// Submits, and copies from the device's memory once all is done. The values stay as they are if that fails.
    pub(super) fn read<T: Pod>(&mut self, from: Address, to: &mut [T]) {
        self.core.submit(&mut self.state);
        self.core.note(&mut self.state, "copying from the device", || {
            // SAFETY: whoever calls this has written so many values at the address; the copy is waited for.
            unsafe {
                result::memcpy_dtoh_async(to, from.0, self.core.stream.cu_stream())?;
                self.core.stream.synchronize()
            }
        });
    }

    /// Records a product by cuBLASLt, if it is there and takes it. If it is `forced`, its refusal is an error.
    pub(super) fn product(&mut self, shape: blas::Shape, operands: blas::Operands, forced: bool) -> bool {
        let State { libraries, error, .. } = self.bound();
        let planned = libraries.blas.as_mut().map(|blas| blas.plan(shape, operands));
        let doing = || format!("asking cuBLASLt for {shape:?}");
        match planned_or_note(planned, forced, error, doing) {
            Some(plan) => self.call(Call::Product(plan), &operands),
            None => false,
        }
    }

    /// Records a convolution by cuDNN, if it is there and takes it. If it is `forced`, its refusal is an error.
    pub(super) fn convolution(
        &mut self,
        spec: &Conv2dSpec,
        pass: dnn::Pass,
        tf32: bool,
        operands: dnn::Operands,
        forced: bool,
    ) -> bool {
        let State { libraries, error, .. } = self.bound();
        let planned = libraries.dnn.as_mut().map(|dnn| dnn.plan(spec, pass, tf32));
        let doing = || format!("asking cuDNN for {pass:?} of {spec:?}");
        match planned_or_note(planned, forced, error, doing) {
            Some(plan) => self.call(Call::Convolution(plan), &operands),
            None => false,
        }
    }

    /// The state, with the context current, by which libraries know the GPU that they are asked for.
    fn bound(&mut self) -> &mut State {
        self.core.note(&mut self.state, "choosing the context", || Ok(()));
        &mut self.state
    }

    fn call(&mut self, call: Call, addresses: &[u64]) -> bool {
        let list = &mut self.state.list;
        for &address in addresses {
            list.starts.push(list.words.len() as u32);
            list.words.push(address);
        }
        let arguments = list.starts.len() as u32;
        list.commands.push(Command { work: Work::Library(call), arguments });
        self.state.chain = None;
        true
    }

    /// The chain that the last launch is, if nothing was recorded since.
    pub(super) fn chain(&self) -> Option<&Chain> {
        self.state.chain.as_ref()
    }

    /// Says that the last launch is this chain.
    pub(super) fn set_chain(&mut self, chain: Chain) {
        // After an error there may be no such launch.
        if self.state.error.is_none() {
            self.state.chain = Some(chain);
        }
    }

    /// Takes back the last launch, which had no `Live` argument.
    pub(super) fn take_back(&mut self) {
        let List { commands, starts, words } = &mut self.state.list;
        commands.pop();
        let first = commands.last().map_or(0, |command| command.arguments as usize);
        if let Some(&word) = starts.get(first) {
            words.truncate(word as usize);
        }
        starts.truncate(first);
        self.state.chain = None;
    }

    /// A launch, to be completed by its arguments.
    pub(super) fn launch(&mut self, kernel: Kernel, grid: Grid) -> Launch<'_, 'c> {
        if self.state.live.len() + 16 > LIVE {
            self.core.submit(&mut self.state);
        }
        let starts = self.state.list.starts.len();
        let words = self.state.list.words.len();
        Launch { record: self, kernel, grid, starts, words }
    }
}

/// The plan that a library made, if there is one.
fn planned_or_note<E: std::fmt::Display>(
    planned: Option<Result<usize, E>>,
    forced: bool,
    first: &mut Option<DeviceError>,
    doing: impl Fn() -> String,
) -> Option<usize> {
    match planned? {
        Ok(plan) => Some(plan),
        Err(error) => {
            if forced {
                first.get_or_insert_with(|| failed(&doing(), error));
            }
            None
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if self.state.depth == 0 {
            self.core.submit(&mut self.state);
        }
    }
}

/// A launch whose arguments are being given, in their order.
#[must_use = "it is recorded by `done`"]
pub(super) struct Launch<'r, 'c> {
    record: &'r mut Record<'c>,
    kernel: Kernel,
    grid: Grid,
    starts: usize,
    words: usize,
}

impl Launch<'_, '_> {
    pub(super) fn arg(self, argument: impl Argument) -> Self {
        let State { list, live, .. } = &mut *self.record.state;
        argument.push(&mut Arguments { list, live, live_at: self.record.core.live });
        self
    }

    /// Records it. One without blocks is none.
    pub(super) fn done(self) {
        let Self { record: Record { core, state }, kernel, grid, starts, words } = self;
        let function = if grid.is_empty() { None } else { core.function(state, kernel) };
        let Some((function, allowed)) = function else {
            state.list.starts.truncate(starts);
            state.list.words.truncate(words);
            return;
        };
        if grid.shared > allowed {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of a module that stays loaded.
            let allow = || unsafe {
                result::function::set_function_attribute(function.0, attribute, grid.shared as i32)
            };
            core.note(state, "asking for shared memory", allow);
            state.functions.insert(kernel, (function, grid.shared));
        }
        state.chain = None;
        let arguments = state.list.starts.len() as u32;
        let Grid { blocks, threads, shared } = grid;
        state
            .list
            .commands
            .push(Command { work: Work::Kernel { function, blocks, threads, shared }, arguments });
    }
}
