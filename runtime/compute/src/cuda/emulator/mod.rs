//! Runs kernels on the CPU, compiled by g++ with `emulator.h`: for tests on machines without a GPU.

use std::ffi::{CString, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::cuda::driver::overrides::Overrides;
use crate::cuda::driver::shares_memory;
use crate::cuda::driver::tuning::Tuning;
use crate::cuda::driver::{Address, Driver, Kernel, Launch, Queue, Recording, TensorCores};
use crate::error::{Error, Result};

const HEADER: &str = include_str!("emulator.h");

/// With C's headers, which are parsed in a quarter of the time of C++'s. Without unique symbols: the shared memory of a kernel template
/// is static variables of its instances, which each library must have.
const OPTIONS: [&str; 8] = [
    "-std=c++17",
    "-nostdinc++",
    "-O1",
    "-w",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-gnu-unique",
];

type Entry = unsafe extern "C" fn(*const u32, u32, u32, *const *const u64);

/// A device that is the CPU. Kernels keep their shared memory in static variables of their library, which runs one at a time.
pub struct Emulator {
    libraries: Mutex<Vec<libloading::Library>>,
    /// Operations until the device is lost.
    operations: AtomicUsize,
    /// Bytes that can still be allocated.
    free: AtomicUsize,
    /// Whether mapped weights are read in place.
    shares: bool,
    shared_memory: usize,
}

/// Bytes of shared memory per block, as on the largest GPUs.
const SHARED_MEMORY: usize = 227 << 10;

fn error(reason: impl Into<String>) -> Error {
    Error::Device {
        device: "emulator".into(),
        reason: reason.into(),
    }
}

impl Emulator {
    /// Creates a device without limits.
    pub fn open() -> Arc<Self> {
        Self::within(usize::MAX, usize::MAX)
    }

    /// Creates a device that is lost after this many operations and has this many bytes of memory.
    pub fn within(operations: usize, bytes: usize) -> Arc<Self> {
        let overrides = Overrides::from_environment().unwrap_or_default();
        Arc::new(Emulator {
            libraries: Mutex::default(),
            operations: operations.into(),
            free: bytes.into(),
            shares: shares_memory().unwrap_or(false),
            shared_memory: overrides.shared_memory.unwrap_or(SHARED_MEMORY),
        })
    }

    /// Creates a device whose blocks have this many bytes of shared memory.
    #[cfg(test)]
    pub(crate) fn with_shared_memory(bytes: usize) -> Arc<Self> {
        Arc::new(Emulator {
            libraries: Mutex::default(),
            operations: usize::MAX.into(),
            free: usize::MAX.into(),
            shares: false,
            shared_memory: bytes,
        })
    }

    /// Creates a device that reads mapped weights in place.
    pub fn sharing() -> Arc<Self> {
        Arc::new(Emulator {
            libraries: Mutex::default(),
            operations: usize::MAX.into(),
            free: usize::MAX.into(),
            shares: true,
            shared_memory: SHARED_MEMORY,
        })
    }

    /// Returns the operations until the device is lost.
    pub fn operations_left(&self) -> usize {
        self.operations.load(Ordering::Relaxed)
    }

    /// Counts an operation; fails if the device is lost.
    fn operate(&self) -> Result<()> {
        let one_less = |left: usize| left.checked_sub(1);
        let order = Ordering::Relaxed;
        match self.operations.fetch_update(order, order, one_less) {
            Ok(_) => Ok(()),
            Err(_) => Err(error("the device was lost")),
        }
    }
}

impl Driver for Emulator {
    fn name(&self) -> &str {
        "emulator"
    }

    fn sms(&self) -> u32 {
        4
    }

    fn tensor_cores(&self) -> TensorCores {
        TensorCores::Warps
    }

    fn tuning(&self) -> Tuning {
        Tuning::for_capability(90)
    }

    fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    /// Blocks run one after another, so the decode kernel has a single block, which computes everything.
    fn prefers_graph(&self) -> bool {
        true
    }

    /// Blocks run one after another: a block that waits for others would wait forever, so there is only one.
    fn resident_blocks(&self) -> std::result::Result<usize, String> {
        Ok(1)
    }

    fn free_bytes(&self) -> Result<usize> {
        self.operate()?;
        Ok(self.free.load(Ordering::Relaxed))
    }

    fn compiles(&self) -> bool {
        true
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.operate()?;
        let whole = 256 + bytes.next_multiple_of(256);
        let less = |free: usize| free.checked_sub(whole);
        let order = Ordering::Relaxed;
        if self.free.fetch_update(order, order, less).is_err() {
            return Err(error(
                "its memory is full; choose a smaller model, context or chunk",
            ));
        }
        let layout =
            std::alloc::Layout::from_size_align(whole, 256).map_err(|e| error(e.to_string()))?;
        // SAFETY: the layout is not empty. Its size is stored before the returned memory, for `release`.
        unsafe {
            let start = std::alloc::alloc(layout);
            if start.is_null() {
                return Err(error("its memory is full"));
            }
            start.cast::<usize>().write(whole);
            // NaN, so that reads of uninitialised memory are noticed.
            start.add(256).write_bytes(0xff, whole - 256);
            Ok(start.add(256) as Address)
        }
    }

    fn release(&self, address: Address) {
        // SAFETY: `allocate` made this block and wrote its size before it.
        unsafe {
            let start = (address as *mut u8).sub(256);
            let whole = start.cast::<usize>().read();
            let layout = std::alloc::Layout::from_size_align_unchecked(whole, 256);
            std::alloc::dealloc(start, layout);
            self.free.fetch_add(whole, Ordering::Relaxed);
        }
    }

    fn share(&self, host: &[u8]) -> Result<Option<Address>> {
        self.operate()?;
        Ok(self.shares.then_some(host.as_ptr() as Address))
    }

    fn forget(&self, _host: &[u8]) {}

    fn compiles_separately(&self) -> bool {
        false
    }

    fn compile(&self, source: &str, names: &[String]) -> Result<Vec<Kernel>> {
        let text = format!("{HEADER}\n{source}");
        let mut hasher = DefaultHasher::new();
        (OPTIONS, &text).hash(&mut hasher);
        let folder = std::env::temp_dir().join("waterline-emulator");
        std::fs::create_dir_all(&folder).map_err(|e| error(e.to_string()))?;
        let library = folder.join(format!("{:016x}.so", hasher.finish()));
        if !library.exists() {
            // Another thread may be about to compile the same text.
            let (process, thread) = (std::process::id(), std::thread::current().id());
            let stem = folder.join(format!("{:016x}-{process}-{thread:?}", hasher.finish()));
            let (input, output) = (
                stem.with_extension("cpp"),
                stem.with_extension("so.partial"),
            );
            std::fs::write(&input, &text).map_err(|e| error(e.to_string()))?;
            let compiled = Command::new("g++")
                .args(OPTIONS)
                .arg("-o")
                .args([&output, &input])
                .output()
                .map_err(|e| error(format!("g++: {e}")))?;
            if !compiled.status.success() {
                let log = String::from_utf8_lossy(&compiled.stderr).into_owned();
                return Err(error(format!("{}: {log}", input.display())));
            }
            std::fs::rename(&output, &library).map_err(|e| error(e.to_string()))?;
        }
        // SAFETY: the library is ours and has no initialisers.
        let library = unsafe { libloading::Library::new(&library) };
        let library = library.map_err(|e| error(e.to_string()))?;
        let mut kernels = Vec::new();
        for name in names {
            let name = CString::new(name.as_str()).expect("a name without zeros");
            // SAFETY: wrappers have this signature.
            let entry = unsafe { library.get::<Entry>(name.as_bytes_with_nul()) };
            kernels.push(Kernel(*entry.map_err(|e| error(e.to_string()))? as usize));
        }
        self.libraries.lock().expect("libraries").push(library);
        Ok(kernels)
    }

    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>> {
        self.operate()?;
        Ok(Box::new(Waiting {
            emulator: self,
            work: Arc::default(),
        }))
    }
}

/// A queue that runs nothing until it is finished, so that another queue that fails to wait for it finds its results missing.
struct Waiting {
    emulator: Arc<Emulator>,
    work: Arc<Mutex<Vec<Work>>>,
}

/// Pending work of a queue: addresses of both sides, and bytes.
enum Work {
    Copy(usize, usize, usize),
    Clear(usize, usize),
    Launch(Launch),
}

impl Work {
    fn run(self) {
        match self {
            // SAFETY: callers copy within their own memory; host memory lives until the queue has finished.
            Work::Copy(from, to, bytes) => unsafe {
                std::ptr::copy(from as *const u8, to as *mut u8, bytes);
            },
            // SAFETY: callers clear within their own memory.
            Work::Clear(at, bytes) => unsafe { std::ptr::write_bytes(at as *mut u8, 0, bytes) },
            Work::Launch(launch) => run(&launch),
        }
    }
}

impl Waiting {
    fn add(&self, work: Work) {
        self.work.lock().expect("work").push(work);
    }
}

fn run(launch: &Launch) {
    let arguments: Vec<*const u64> = launch.arguments.iter().map(|a| a.0.as_ptr()).collect();
    // SAFETY: the driver made the handle from a function of this type.
    let entry =
        unsafe { std::mem::transmute::<*const c_void, Entry>(launch.kernel.0 as *const c_void) };
    // SAFETY: the arguments were made for the kernel's parameters.
    unsafe {
        entry(
            launch.grid.as_ptr(),
            launch.threads,
            launch.shared,
            arguments.as_ptr(),
        )
    };
}

impl Queue for Waiting {
    /// `finish` counts the operation.
    unsafe fn begin_write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.add(Work::Copy(
            bytes.as_ptr() as usize,
            to as usize,
            bytes.len(),
        ));
        Ok(())
    }

    /// `finish` counts the operation.
    unsafe fn begin_read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.add(Work::Copy(
            from as usize,
            bytes.as_mut_ptr() as usize,
            bytes.len(),
        ));
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.emulator.operate()?;
        self.add(Work::Copy(from as usize, to as usize, bytes));
        Ok(())
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        self.emulator.operate()?;
        self.add(Work::Clear(at as usize, bytes));
        Ok(())
    }

    fn launch(&self, launch: &Launch) -> Result<()> {
        self.emulator.operate()?;
        self.add(Work::Launch(launch.clone()));
        Ok(())
    }

    fn admits(&self, _launch: &Launch) -> Result<Option<String>> {
        self.emulator.operate()?;
        Ok(None)
    }

    fn record(&self, launches: &[Launch]) -> Result<Box<dyn Recording>> {
        self.emulator.operate()?;
        Ok(Box::new(Replay {
            emulator: Arc::clone(&self.emulator),
            work: Arc::clone(&self.work),
            launches: launches.to_vec(),
        }))
    }

    fn finish(&self) -> Result<()> {
        self.emulator.operate()?;
        let work = std::mem::take(&mut *self.work.lock().expect("work"));
        work.into_iter().for_each(Work::run);
        Ok(())
    }
}

/// Recorded launches, which each replay adds to the queue.
struct Replay {
    emulator: Arc<Emulator>,
    work: Arc<Mutex<Vec<Work>>>,
    launches: Vec<Launch>,
}

impl Recording for Replay {
    fn replay(&self) -> Result<()> {
        self.emulator.operate()?;
        let launches = self.launches.iter().cloned().map(Work::Launch);
        self.work.lock().expect("work").extend(launches);
        Ok(())
    }
}
