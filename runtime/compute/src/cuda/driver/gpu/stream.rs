//! The queue of a GPU: a stream, which runs copies and kernels in order, and its recordings.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaGraph, CudaStream, DriverError, result, sys};

use super::{Gpu, error};
use crate::cuda::driver::{Address, Argument, Launch, Queue, Recording};
use crate::error::Result;

/// A stream of a GPU's context.
pub(super) struct Stream {
    pub(super) gpu: Arc<Gpu>,
    pub(super) stream: Arc<CudaStream>,
}

impl Stream {
    /// Starts a kernel in clusters of this many blocks; the context must be current.
    fn start(&self, launch: &Launch, cluster: u32) -> Result<(), DriverError> {
        let pointer = |argument: &Argument| argument.0.as_ptr() as *mut c_void;
        let mut arguments = [std::ptr::null_mut(); crate::cuda::driver::PARAMETERS];
        for (place, argument) in arguments.iter_mut().zip(&launch.arguments) {
            *place = pointer(argument);
        }
        use sys::{CUlaunchAttributeID as Id, CUlaunchAttributeValue as Value};
        let attribute = |is_set, id, value| sys::CUlaunchAttribute {
            id: if is_set {
                id
            } else {
                Id::CU_LAUNCH_ATTRIBUTE_IGNORE
            },
            pad: [0; 4],
            value,
        };
        let mut attributes = [
            attribute(
                launch.cooperative,
                Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                Value { cooperative: 1 },
            ),
            // Where kernels may overlap, each kernel waits for the previous one itself (`wait_for_dependencies`).
            attribute(
                self.gpu.overlaps && !launch.cooperative,
                Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                Value {
                    programmaticStreamSerializationAllowed: 1,
                },
            ),
            attribute(
                cluster > 1,
                Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                Value {
                    clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                        x: cluster,
                        y: 1,
                        z: 1,
                    },
                },
            ),
        ];
        let [x, y, z] = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: self.stream.cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the arguments were made for the kernel's parameters: one text declares both.
        unsafe {
            sys::cuLaunchKernelEx(
                &config,
                launch.kernel.0 as sys::CUfunction,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
    }
}

impl Queue for Stream {
    unsafe fn begin_write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: callers write within their own memory; the host's bytes live until the stream is done.
        let copied = unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) };
        self.gpu.check(copied)
    }

    unsafe fn begin_read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: as for `begin_write`.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, from, self.stream.cu_stream()) };
        self.gpu.check(copied)
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: callers copy within their own memory.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) };
        self.gpu.check(copied)
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: callers clear within their own memory.
        let cleared = unsafe { result::memset_d8_async(at, 0, bytes, self.stream.cu_stream()) };
        self.gpu.check(cleared)
    }

    fn launch(&self, launch: &Launch) -> Result<()> {
        use sys::cudaError_enum as Code;
        self.gpu.bind()?;
        let started = match self.start(launch, launch.cluster) {
            // Other processes may hold too many SMs of each part of the device. The blocks of such kernels can run without a cluster.
            Err(DriverError(
                Code::CUDA_ERROR_INVALID_CLUSTER_SIZE | Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            )) if launch.cluster > 1 => self.start(launch, 1),
            started => started,
        };
        self.gpu.check(started)
    }

    fn admits(&self, launch: &Launch) -> Result<Option<String>> {
        use sys::cudaError_enum as Code;
        self.gpu.bind()?;
        let mut each = 0;
        // SAFETY: the function is valid, and `each` is a place for a number.
        let counted = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut each,
                launch.kernel.0 as sys::CUfunction,
                launch.threads as i32,
                launch.shared as usize,
            )
        }
        .result();
        self.gpu.check(counted)?;
        let [blocks, ..] = launch.grid;
        let resident = each as u32 * self.gpu.sms;
        if resident < blocks {
            return Ok(Some(format!(
                "only {resident} of {blocks} thread blocks of {} threads and {} bytes of shared memory fit on it at once",
                launch.threads, launch.shared
            )));
        }
        // Only a launch reveals what other processes hold (MPS, reserved SMs).
        match self.start(launch, launch.cluster) {
            Err(DriverError(
                code @ (Code::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
                | Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
                | Code::CUDA_ERROR_NOT_SUPPORTED
                | Code::CUDA_ERROR_NOT_PERMITTED),
            )) => Ok(Some(format!(
                "the driver refuses to run {blocks} thread blocks at once ({code:?})"
            ))),
            launched => {
                self.gpu.check(launched)?;
                self.finish()?;
                Ok(None)
            }
        }
    }

    fn record(&self, launches: &[Launch]) -> Result<Box<dyn Recording>> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.gpu.check(self.stream.begin_capture(mode))?;
        let queued: Result<()> = launches.iter().try_for_each(|launch| self.launch(launch));
        // The flag makes no difference to a graph that allocates no device memory.
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.gpu.check(self.stream.end_capture(flags));
        queued?;
        let graph = graph?.ok_or_else(|| error(&self.gpu.name, "the recorded graph is empty"))?;
        Ok(Box::new(Graph {
            gpu: Arc::clone(&self.gpu),
            graph,
        }))
    }

    fn finish(&self) -> Result<()> {
        self.gpu.check(self.stream.synchronize())
    }
}

struct Graph {
    gpu: Arc<Gpu>,
    graph: CudaGraph,
}

// SAFETY: a graph may be used from any thread, one at a time, and it is owned by one session.
unsafe impl Send for Graph {}

impl Recording for Graph {
    fn replay(&self) -> Result<()> {
        self.gpu.check(self.graph.launch())
    }
}
