//! A device that sessions run on: its driver, and the weights and kernels that it holds.

use std::any::Any;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::Builder;
use std::time::Instant;

use once_cell::sync::OnceCell;

use crate::cuda::driver::weights::Weights;
use crate::cuda::driver::{Driver, Kernel, Memory, Transfer, compile_only, gpu};
#[cfg(feature = "emulator")]
use crate::cuda::emulator;
use crate::cuda::schedule::{Call, Grid, Node, Parameter, Queued, Source};
use crate::cuda::source::{Definition, TranslationUnit, kernels_of};
use crate::error::{Error, Result};
use crate::state::Kv;

/// The owner of weights: a model.
type Owner = dyn Any + Send + Sync;

/// The most threads that compile at once: NVRTC takes up to 50 MB in each.
const MOST_THREADS: usize = 16;

/// Kernels of a translation unit. A thread that needs kernels that another thread is compiling waits for them.
type Compiled = Arc<OnceCell<Vec<Kernel>>>;

/// Parameters that determine the memory of chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChunkKey {
    /// Address of the model, which its sessions keep alive.
    pub model: usize,
    /// Bytes of a state.
    pub state: usize,
    /// Tokens of a chunk.
    pub tokens: usize,
    /// Type of cached keys and values.
    pub kv: Kv,
}

/// Buffers and working memory of chunks. Sessions of a model use them one at a time: the holder of the lock waits for the device before it
/// releases the lock.
#[derive(Default)]
pub struct ChunkMemory {
    /// The buffers between ops.
    pub buffers: Vec<Memory>,
    /// Workspaces, in the order in which ops take them.
    pub scratch: Vec<Memory>,
    /// Transfers checkpoints to the host; `None` while a transfer is under way.
    pub transfer: Option<Transfer>,
    /// Bytes of the transfer.
    pub transfer_bytes: usize,
}

impl ChunkMemory {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        let memories = self.buffers.iter().chain(&self.scratch);
        memories.map(Memory::bytes).sum::<usize>() + self.transfer_bytes
    }
}

/// A device that sessions can run on, with the weights and kernels that it holds. Cloning the `Arc` shares them.
pub struct Device {
    driver: Arc<dyn Driver>,
    /// Weights of every model in use, by the model's address.
    weights: Mutex<Vec<(Weak<Owner>, Arc<Weights>)>>,
    /// Kernels by source text.
    kernels: Mutex<HashMap<String, Compiled>>,
    /// The memory of chunks of sessions in use.
    chunks: Mutex<Vec<(ChunkKey, Weak<Mutex<ChunkMemory>>)>>,
}

impl Device {
    /// Opens GPU number `ordinal`.
    ///
    /// # Errors
    /// [`crate::Error::Device`] if there is no driver, if it is too old, or if there is no GPU of this number.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        Ok(Self::on(gpu::Gpu::open(ordinal)?))
    }

    /// Opens GPU number 0, if it can serve sessions on a model with this many bytes of weights: it must have free memory for a quarter
    /// more, and NVRTC must be able to compile kernels.
    ///
    /// # Errors
    /// [`crate::Error::Device`] with the reason why the CPU serves better.
    pub fn automatic(weights: usize) -> Result<Arc<Self>> {
        let device = Self::open(0)?;
        device.suits(weights)?;
        Ok(device)
    }

    pub(crate) fn suits(&self, weights: usize) -> Result<()> {
        let not = |reason: String| {
            Err(Error::Device {
                device: self.name().into(),
                reason,
            })
        };
        if !self.driver.compiles() {
            return not("NVRTC (libnvrtc), which compiles its kernels, is not installed".into());
        }
        let (free, needed) = (
            self.driver.free_bytes()?,
            weights.saturating_add(weights / 4),
        );
        if free < needed {
            return not(format!(
                "{free} bytes of its memory are free; a model of {weights} bytes should have {needed}"
            ));
        }
        Ok(())
    }

    /// Creates a device of `architecture` (such as `sm_87`) with `sms` SMs, on which nothing can run. Opening a session on it compiles the
    /// session's kernels into `folder`; without a folder nothing is compiled, for [`crate::Model::schedule_on`].
    pub fn compile_only(architecture: &str, sms: u32, folder: Option<PathBuf>) -> Arc<Self> {
        Self::on(compile_only::CompileOnly::new(architecture, sms, folder))
    }

    /// The emulator, on which tests run kernels without a GPU.
    #[cfg(feature = "emulator")]
    pub fn emulated() -> Arc<Self> {
        Self::on(emulator::Emulator::open())
    }

    /// An emulator whose blocks have this many bytes of shared memory.
    #[cfg(all(test, feature = "emulator"))]
    pub(crate) fn emulated_with_shared(bytes: usize) -> Arc<Self> {
        Self::on(emulator::Emulator::with_shared_memory(bytes))
    }

    /// An emulator that is lost after this many operations.
    #[cfg(feature = "emulator")]
    pub fn emulated_until(operations: usize) -> Arc<Self> {
        Self::on(emulator::Emulator::within(operations, usize::MAX))
    }

    /// An emulator that reads mapped weights in place.
    #[cfg(feature = "emulator")]
    pub fn emulated_sharing() -> Arc<Self> {
        Self::on(emulator::Emulator::sharing())
    }

    /// An emulator with this many bytes of memory.
    #[cfg(feature = "emulator")]
    pub fn emulated_with(bytes: usize) -> Arc<Self> {
        Self::on(emulator::Emulator::within(usize::MAX, bytes))
    }

    #[doc(hidden)]
    pub fn on(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Device {
            driver,
            weights: Mutex::default(),
            kernels: Mutex::default(),
            chunks: Mutex::default(),
        })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        self.driver.name()
    }

    /// Returns the bytes of device memory that hold weights.
    pub fn weight_bytes(&self) -> usize {
        let weights = self.weights.lock().expect("weights");
        weights.iter().map(|(_, weights)| weights.bytes()).sum()
    }

    /// Returns the bytes of weights that the device reads from host memory, where the file is mapped: on a device that shares that memory,
    /// or with `WATERLINE_MAPPED=1` in the environment. Formats that kernels read in another order than the file's (Q8_0, Q4_0, Q6_K) are
    /// copied even so.
    pub fn shared_bytes(&self) -> usize {
        let weights = self.weights.lock().expect("weights");
        let shared = weights.iter().map(|(_, weights)| weights.shared_bytes());
        shared.sum()
    }

    /// Measures the bandwidth of a plain read of `bytes`, in bytes per second: the median of nine passes.
    ///
    /// # Errors
    /// [`crate::Error::Device`] if the memory cannot be allocated.
    pub fn read_bandwidth(&self, bytes: usize) -> Result<f64> {
        let memory = Memory::new(&self.driver, bytes)?;
        let queue = Arc::clone(&self.driver).queue()?;
        queue.clear(memory.address(), bytes)?;
        let blocks = 8 * self.driver.sms() as usize;
        let call = Call {
            source: const { &[Source::new("cuda/driver/read.cu", &[])] },
            kernel: "read_all".into(),
            grid: Grid::Blocks(blocks),
            threads: 512,
            shared: 0,
            parameters: vec![
                Parameter::pointer("const u8", memory.address()),
                Parameter::value(bytes as u64 / 16),
                Parameter::pointer("u32", memory.address()),
            ],
        };
        let queued = Queued::new(call, Node::Waits);
        let kernels = self.kernels(&[&queued])?;
        let launch = queued.launch(kernels[0], 1);
        let pass = || -> Result<f64> {
            const TIMES: usize = 8;
            queue.finish()?;
            let start = Instant::now();
            for _ in 0..TIMES {
                queue.launch(&launch)?;
            }
            queue.finish()?;
            Ok((TIMES * bytes) as f64 / start.elapsed().as_secs_f64())
        };
        let mut rates = (0..9).map(|_| pass()).collect::<Result<Vec<_>>>()?;
        rates.sort_by(f64::total_cmp);
        Ok(rates[rates.len() / 2])
    }

    #[doc(hidden)]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns the model's weights, which are uploaded at first use.
    #[doc(hidden)]
    pub fn weights(&self, model: Arc<Owner>) -> Arc<Weights> {
        let mut all = self.weights.lock().expect("weights");
        all.retain(|(model, _)| model.strong_count() > 0);
        let this = all
            .iter()
            .find(|(known, _)| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(&model)));
        if let Some((_, weights)) = this {
            return Arc::clone(weights);
        }
        let weights = Arc::new(Weights::new(Arc::clone(&self.driver)));
        all.push((Arc::downgrade(&model), Arc::clone(&weights)));
        weights
    }

    /// Returns the memory of chunks for sessions of a model; it is empty for the first of them.
    #[doc(hidden)]
    pub fn chunk_memory(&self, key: ChunkKey) -> Arc<Mutex<ChunkMemory>> {
        let mut all = self.chunks.lock().expect("chunks");
        all.retain(|(_, memory)| memory.strong_count() > 0);
        let this = all.iter().find(|(known, _)| *known == key);
        if let Some(memory) = this.and_then(|(_, memory)| memory.upgrade()) {
            return memory;
        }
        let memory = Arc::default();
        all.push((key, Arc::downgrade(&memory)));
        memory
    }

    /// Returns the text that NVRTC compiles for `kernel`, such as `decode_kernel`, if a session has needed it.
    pub fn source_of(&self, kernel: &str) -> Option<String> {
        let kernels = self.kernels.lock().expect("kernels");
        let defines = |text: &&String| text.contains(&format!(" {kernel}("));
        kernels.keys().find(defines).cloned()
    }

    /// Returns the kernel of each call, compiling kernels if necessary.
    #[doc(hidden)]
    pub fn kernels(&self, calls: &[&Queued]) -> Result<Vec<Kernel>> {
        let (kernels, of_call) = kernels_of(calls);
        // Units of one kernel each compile side by side.
        let of_unit = if self.driver.compiles_separately() {
            1
        } else {
            kernels.len().max(1)
        };
        let units = kernels.chunks(of_unit).map(|unit| {
            let key = unit.iter().map(|kernel| kernel.wrapper.as_str()).collect();
            (unit, self.compiled(key))
        });
        let units: Vec<(&[Definition], Compiled)> = units.collect();
        let compile = |(unit, compiled): &(&[Definition], Compiled)| {
            let compile = || TranslationUnit::new(unit, calls).compile(&*self.driver);
            compiled.get_or_try_init(compile).cloned()
        };
        let is_missing = |(_, compiled): &&(_, Compiled)| compiled.get().is_none();
        let missing: Vec<_> = units.iter().filter(is_missing).collect();
        let next = AtomicUsize::new(0);
        let compile_some = || {
            while let Some(unit) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                // An error recurs below.
                let _ = compile(unit);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(MOST_THREADS).min(missing.len());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Without a thread, the others compile its part.
                let _ = Builder::new().spawn_scoped(scope, compile_some);
            }
            compile_some();
        });
        let compiled = units.iter().map(compile).collect::<Result<Vec<_>>>()?;
        let compiled = compiled.concat();
        Ok(of_call.into_iter().map(|of| compiled[of]).collect())
    }

    /// Returns the kernels of a unit, compiling it if necessary.
    pub(super) fn compile(&self, unit: &TranslationUnit) -> Result<Vec<Kernel>> {
        let compiled = self.compiled(unit.text.clone());
        let compile = || unit.compile(&*self.driver);
        compiled.get_or_try_init(compile).cloned()
    }

    /// Returns the place for the kernels that are known by `key`.
    fn compiled(&self, key: String) -> Compiled {
        let mut kernels = self.kernels.lock().expect("kernels");
        Arc::clone(kernels.entry(key).or_default())
    }
}
