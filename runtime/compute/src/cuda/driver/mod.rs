//! A device as the backend needs it: memory, kernels, and a queue that runs operations in order.

mod cache;
mod compile;
pub(crate) mod compile_only;
#[cfg_attr(not(feature = "cuda"), path = "no_gpu.rs")]
pub(crate) mod gpu;
mod nvrtc;
pub(crate) mod overrides;
mod transfer;
pub(crate) mod tuning;
pub(crate) mod weights;

use std::sync::Arc;

pub use transfer::Transfer;

use crate::cuda::driver::tuning::Tuning;
use crate::error::Result;

/// An address in a device's memory.
pub type Address = u64;

/// The reason why a static program, which can load no library, uses neither the driver nor NVRTC.
pub(crate) const STATIC: Option<&str> =
    if cfg!(all(target_env = "musl", target_feature = "crt-static")) {
        Some("this build cannot use CUDA: it is static and cannot load libraries")
    } else {
        None
    };

/// The reason why an old GPU has no decode kernel: 8.0 introduced asynchronous copies into shared memory.
pub(crate) const TOO_OLD: &str = "its compute capability is less than 8.0";

/// The tensor cores of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TensorCores {
    /// Plain instructions only.
    None,
    /// Warps multiply tiles in their registers (`mma`).
    Warps,
    /// In addition, groups of four warps multiply tiles in shared memory (`wgmma`).
    WarpGroups,
}

impl TensorCores {
    /// Returns the tensor cores of chips of this major compute capability.
    pub fn for_capability(major: i32) -> Self {
        match major {
            9 => TensorCores::WarpGroups,
            8.. => TensorCores::Warps,
            _ => TensorCores::None,
        }
    }
}

/// A device with its own memory: a GPU, or the emulator that tests run kernels on.
pub trait Driver: Send + Sync {
    /// Returns the device's name.
    fn name(&self) -> &str;

    /// Returns the number of streaming multiprocessors.
    fn sms(&self) -> u32;

    /// Returns the kind of tensor cores.
    fn tensor_cores(&self) -> TensorCores;

    /// Returns the constants of the decode kernel.
    fn tuning(&self) -> Tuning;

    /// Returns the bytes of shared memory that a block may have.
    fn shared_memory(&self) -> usize;

    /// Whether a step is faster as a graph than as one kernel. It is not on a GPU.
    fn prefers_graph(&self) -> bool {
        false
    }

    /// Returns the number of thread blocks of the decode kernel, which wait for each other, or the reason why there is no such kernel.
    fn resident_blocks(&self) -> std::result::Result<usize, String>;

    /// Returns the bytes of free memory.
    fn free_bytes(&self) -> Result<usize>;

    /// Whether a compiler is available for kernels that are not in the cache.
    fn compiles(&self) -> bool;

    /// Whether the device has real memory.
    fn stores(&self) -> bool {
        true
    }

    /// Allocates uninitialised memory, aligned to 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Frees memory from [`Driver::allocate`], which nothing may use any more.
    fn release(&self, address: Address);

    /// Lets kernels read the host's bytes, which begin at a page, in place, and returns their device address; `None` on a device that
    /// should have a copy. The bytes must stay there until [`Driver::forget`].
    fn share(&self, host: &[u8]) -> Result<Option<Address>>;

    /// Ends [`Driver::share`] of these bytes.
    fn forget(&self, host: &[u8]);

    /// Locks the host's bytes in memory until [`Driver::unpin`], so that queues copy them at full speed while the host does other work.
    /// Returns false if that is refused; copies are slower then.
    fn pin(&self, _host: &[u8]) -> bool {
        false
    }

    /// Ends [`Driver::pin`] of these bytes.
    fn unpin(&self, _host: &[u8]) {}

    /// Whether kernels should be compiled each by itself: a compiler that takes long to start compiles them all at once.
    fn compiles_separately(&self) -> bool {
        true
    }

    /// Compiles `source` and returns the kernels `names` in order.
    fn compile(&self, source: &str, names: &[String]) -> Result<Vec<Kernel>>;

    /// Creates a queue.
    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>>;
}

/// Operations that run one after another on the device.
pub trait Queue: Send {
    /// Starts copying to the device.
    ///
    /// # Safety
    /// Until [`Queue::finish`] the bytes must neither change nor be freed.
    unsafe fn begin_write(&self, to: Address, bytes: &[u8]) -> Result<()>;

    /// Starts copying from the device, after everything that was queued before.
    ///
    /// # Safety
    /// Until [`Queue::finish`] the bytes must not be read, written or freed.
    unsafe fn begin_read(&self, from: Address, bytes: &mut [u8]) -> Result<()>;

    /// Copies to the device. The bytes may change as soon as this returns.
    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // SAFETY: the bytes are borrowed until the copy is done.
        unsafe { self.begin_write(to, bytes)? };
        self.finish()
    }

    /// Copies from the device, after everything that was queued before.
    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the bytes are borrowed until the copy is done.
        unsafe { self.begin_read(from, bytes)? };
        self.finish()
    }

    /// Copies within the device.
    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// Fills memory with zeros.
    fn clear(&self, at: Address, bytes: usize) -> Result<()>;

    /// Starts a kernel.
    fn launch(&self, launch: &Launch) -> Result<()>;

    /// Returns the reason why the device cannot run all blocks of a launch at once, if it cannot. The launch itself must do nothing.
    fn admits(&self, launch: &Launch) -> Result<Option<String>>;

    /// Records launches, to be replayed as one.
    fn record(&self, launches: &[Launch]) -> Result<Box<dyn Recording>>;

    /// Waits until everything that was queued has run.
    fn finish(&self) -> Result<()>;
}

/// Recorded launches.
pub trait Recording: Send {
    /// Queues all of the launches.
    fn replay(&self) -> Result<()>;
}

/// A compiled kernel: the driver's handle.
#[derive(Clone, Copy)]
pub struct Kernel(pub usize);

/// Maximum number of parameters of a kernel.
pub(crate) const PARAMETERS: usize = 32;

/// The bytes of one argument, in the layout of the kernel's parameter.
#[derive(Clone)]

pub struct Argument(pub Box<[u64]>);

/// A kernel with its arguments.
#[derive(Clone)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Blocks.
    pub grid: [u32; 3],
    /// Blocks along x that form a cluster; 1 where no cluster is needed.
    pub cluster: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The arguments in order.
    pub arguments: Vec<Argument>,
    /// Whether the blocks wait for each other, so that all of them must run at once.
    pub cooperative: bool,
}

/// Memory of a device, released when it is dropped.
pub struct Memory {
    driver: Arc<dyn Driver>,
    address: Address,
    bytes: usize,
}

impl Memory {
    /// Allocates memory with undefined contents.
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self> {
        Ok(Memory {
            address: driver.allocate(bytes.max(1))?,
            driver: Arc::clone(driver),
            bytes,
        })
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.driver.release(self.address);
    }
}

/// Returns whether `WATERLINE_MAPPED` requests that mapped weights are read in place (1) or copied (0).
pub(crate) fn shares_memory() -> Option<bool> {
    match std::env::var("WATERLINE_MAPPED").ok()?.as_str() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
