//! The list of kernel calls to which ops append, with addresses of buffers, state tensors and weights.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use waterline_quant::Matrix;

use super::{Accesses, Call, Node, OpMemory, Parameter, Queued, Rows};
use crate::cuda::driver::weights::{PLAIN, STORED, Weights};
use crate::cuda::driver::{Address, Driver, Memory, Queue, TensorCores};
use crate::error::Result;
use crate::operands::{Access, Operand, View};
use crate::state::{HEADER, Kv, StatePlan};
use crate::weights::Vector;

/// Consumer threads of a block of the decode kernel. Sixteen warps hide each other's latencies.
pub(crate) const DECODE_THREADS: usize = 512;

/// The kernels of one session's program, in order.
pub struct Launches<'a> {
    /// Tokens of the largest chunk: 1 for the decode program.
    pub tokens: usize,
    /// Whether each token of a chunk gets the same bits as in a step.
    pub(crate) as_steps: bool,
    /// The slot of a batch that the calls are for, or the only one.
    pub slot: Slot,
    pub(crate) memory: SessionMemory<'a>,
    pub(crate) limits: Limits,
    pub(crate) workspaces: Workspaces<'a>,
    /// Whether the program routes tokens to experts or partitions. A difference in the last bit of a sum may then change the routing and
    /// all that follows, so products match the CPU's as far as possible.
    pub has_routing: bool,
    /// Whether the calls become ops of the decode kernel, of which each SM runs one block.
    pub persistent: bool,
    pub(crate) calls: Vec<Queued>,
    /// The op whose calls are being appended.
    current: Option<OpMemory>,
}

/// The slot of a batch that calls are for.
#[derive(Clone, Copy)]
pub struct Slot {
    /// Row of the slot in each buffer.
    pub row: usize,
    /// Address of the number of tokens before this one, if it is not in the state.
    pub position: Option<Address>,
    /// Number of concurrent ops that would each fill the device, including those of other slots: each gets a part of the SMs.
    pub sharing: usize,
}

impl Slot {
    /// The slot of a session that steps alone.
    pub const ALONE: Slot = Slot {
        row: 0,
        position: None,
        sharing: 1,
    };
}

/// The limits of a device.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Streaming multiprocessors.
    pub sms: usize,
    pub tensor_cores: TensorCores,
    /// Bytes of shared memory that a block may have.
    pub shared_memory: usize,
}

/// Workspaces by their purpose: bytes and address.
pub type Rooms = HashMap<&'static str, (usize, Address)>;

/// The working memory of ops.
pub(crate) struct Workspaces<'a> {
    /// Owned by the session.
    memory: &'a mut Vec<Memory>,
    /// Index of the first workspace that no op has taken.
    untaken: usize,
    /// Workspaces that ops share.
    pub shared: Rooms,
}

/// The memory of a session that kernels read and write.
#[derive(Clone, Copy)]
pub struct SessionMemory<'a> {
    /// Layout of the state.
    pub plan: &'a StatePlan,
    /// Address of the state.
    pub arena: Address,
    /// Tokens of the chunk, u32.
    pub ids: Address,
    /// Buffers between ops.
    pub buffers: &'a [Memory],
    /// The model's weights.
    pub weights: &'a Weights,
    /// Uploads weights.
    pub queue: &'a dyn Queue,
    /// Type of cached keys and values.
    pub kv: Kv,
}

impl<'a> Launches<'a> {
    /// Creates an empty list for chunks of up to `tokens`; workspaces of ops are added to `scratch`.
    pub fn new(
        memory: &SessionMemory<'a>,
        scratch: &'a mut Vec<Memory>,
        tokens: usize,
        persistent: bool,
    ) -> Self {
        let driver = memory.weights.driver();
        Launches {
            tokens,
            as_steps: false,
            slot: Slot::ALONE,
            memory: *memory,
            limits: Limits {
                sms: driver.sms() as usize,
                tensor_cores: driver.tensor_cores(),
                shared_memory: driver.shared_memory(),
            },
            workspaces: Workspaces {
                untaken: scratch.len(),
                memory: scratch,
                shared: Rooms::new(),
            },
            has_routing: false,
            persistent,
            calls: Vec::new(),
            current: None,
        }
    }

    /// Like [`Launches::new`], but ops take the workspaces in `scratch` again before they add others.
    pub fn reusing(
        memory: &SessionMemory<'a>,
        scratch: &'a mut Vec<Memory>,
        tokens: usize,
    ) -> Self {
        let mut launches = Launches::new(memory, scratch, tokens, false);
        launches.workspaces.untaken = 0;
        launches
    }

    /// Returns the nodes, in order.
    pub fn into_nodes(self) -> Vec<Queued> {
        #[cfg(any(test, feature = "emulator"))]
        assert!(!(self.persistent && self.calls.iter().any(Queued::exceeds_op)));
        self.calls
    }

    /// Returns the kernels, in order.
    pub fn into_calls(self) -> Vec<Queued> {
        let mut calls = self.into_nodes();
        calls.iter_mut().for_each(Queued::complete);
        calls
    }
}

impl Launches<'_> {
    /// Begins op number `op`, to which the calls that follow belong.
    pub fn begin(&mut self, op: usize, access: &Access) {
        let memory = |operands: &[Operand]| -> Vec<Range<Address>> {
            let memory = operands.iter().map(|operand| match *operand {
                Operand::Columns(view) => self.rows(view).bytes(),
                Operand::State(tensor) => self.state_bytes(tensor),
            });
            memory.collect()
        };
        self.current = Some(OpMemory {
            op,
            accesses: Accesses {
                reads: memory(&access.reads),
                writes: memory(&access.writes),
            },
            own: Vec::new(),
        });
    }

    /// Ends the op: the calls that follow belong to no op.
    pub fn end(&mut self) {
        self.current = None;
    }

    /// Adds memory to the writes of the calls that follow, such as a workspace that ops share.
    pub fn also_writes(&mut self, memory: Range<Address>) {
        if let Some(current) = &mut self.current {
            current.accesses.writes.push(memory);
        }
    }

    /// Appends a kernel.
    pub fn push(&mut self, call: Call) {
        self.push_node(call, Node::Waits);
    }

    /// Appends a kernel that prefetches weights before it calls `wait_for_dependencies`.
    pub(crate) fn push_prefetching(&mut self, call: Call) -> &mut Queued {
        self.push_node(call, Node::Prefetches)
    }

    /// Restricts the accesses of the last call to a part of the memory that its op names, so that in the decode kernel it depends on fewer
    /// calls. The op's private workspaces need not be listed.
    pub(crate) fn narrow_accesses(&mut self, reads: &[Range<Address>], writes: &[Range<Address>]) {
        if let Some(queued) = self.calls.last_mut() {
            queued.accesses = Some(Accesses {
                reads: reads.to_vec(),
                writes: writes.to_vec(),
            });
        }
    }

    /// Appends the kernel of a node, whose arguments are still missing among the call's parameters.
    pub(crate) fn push_node(&mut self, call: Call, node: Node) -> &mut Queued {
        self.calls.push(Queued {
            of: self.current.clone(),
            ..Queued::new(call, node)
        });
        self.calls.last_mut().expect("the call that was appended")
    }

    /// Returns the threads of a block that runs a prologue: in the decode kernel all consumer threads.
    pub(crate) fn prologue_threads(&self) -> usize {
        if self.persistent { DECODE_THREADS } else { 256 }
    }

    /// Returns the type of cached keys and values in kernels.
    pub fn kv(&self) -> &'static str {
        match self.memory.kv {
            Kv::F16 => "half",
            Kv::F32 => "float",
        }
    }

    /// Returns the number of SMs that the current op may use, given the ops that run concurrently.
    pub(crate) fn share_of_sms(&self) -> usize {
        (self.limits.sms / self.slot.sharing).max(1)
    }

    /// Returns columns of a buffer as `Rows`.
    pub fn rows(&self, view: View) -> Rows {
        let buffer = self.memory.buffers[view.buffer].address();
        let first = self.slot.row * view.stride + view.start;
        Rows {
            first: buffer + (first * size_of::<f32>()) as u64,
            stride: view.stride as i32,
            width: view.width as i32,
        }
    }

    /// Returns columns of a buffer as a parameter of type `Rows`.
    pub fn view(&self, view: View) -> Parameter {
        Parameter::value(self.rows(view))
    }

    /// Address of a state tensor.
    pub fn state_address(&self, tensor: usize) -> Address {
        self.memory.arena + self.memory.plan.tensors()[tensor].offset as u64
    }

    /// The memory of a state tensor.
    pub fn state_bytes(&self, tensor: usize) -> Range<Address> {
        let first = self.state_address(tensor);
        first..first + self.memory.plan.tensors()[tensor].bytes as u64
    }

    /// The shape of a state tensor.
    pub(crate) fn state_shape(&self, tensor: usize) -> &[usize] {
        &self.memory.plan.tensors()[tensor].shape
    }

    /// A state tensor as a pointer to `kind`.
    pub fn state(&self, kind: &str, tensor: usize) -> Parameter {
        Parameter::pointer(kind, self.state_address(tensor))
    }

    /// Returns the number of tokens read before this chunk, a `const u64*`.
    pub fn position(&self) -> Parameter {
        let position = self
            .slot
            .position
            .unwrap_or_else(|| self.state_address(HEADER));
        Parameter::pointer("const u64", position)
    }

    /// Address of a small tensor.
    pub(crate) fn vector_address(&self, vector: &Vector) -> Result<Address> {
        self.upload(bytemuck::cast_slice(vector))
    }

    /// Returns the address of a small tensor, or 0 without one.
    pub(crate) fn optional_address(&self, vector: Option<&Vector>) -> Result<Address> {
        vector.map_or(Ok(0), |vector| self.vector_address(vector))
    }

    /// A small tensor, a `const float*`.
    pub fn vector(&self, vector: &Vector) -> Result<Parameter> {
        Ok(Parameter::pointer(
            "const float",
            self.vector_address(vector)?,
        ))
    }

    /// Returns the address of the device's copy of bytes that live as long as the model.
    pub fn upload(&self, bytes: &[u8]) -> Result<Address> {
        self.memory
            .weights
            .upload(self.memory.queue, bytes, PLAIN, || None)
    }

    /// Returns the address of a matrix in the layout that kernels read: in host memory where the device reads it there, else of a copy.
    pub(crate) fn matrix_address(&self, matrix: &Matrix) -> Result<Address> {
        let bytes = matrix.bytes();
        if matrix.has_device_layout()
            && let Some(address) = self.memory.weights.share(bytes)?
        {
            return Ok(address);
        }
        let pack = || matrix.device_layout();
        self.memory
            .weights
            .upload(self.memory.queue, bytes, STORED, pack)
    }

    /// Returns the address of the workspace that ops share for `purpose`. Nothing in it outlives an op.
    pub(crate) fn shared_address(
        &mut self,
        purpose: &'static str,
        bytes: usize,
    ) -> Result<Address> {
        let address = match self.workspaces.shared.get(purpose) {
            Some(&(room, address)) if room >= bytes => address,
            _ => {
                let address = self.scratch_address(bytes)?;
                self.workspaces.shared.insert(purpose, (bytes, address));
                address
            }
        };
        self.also_writes(address..address + bytes as u64);
        Ok(address)
    }

    /// Returns the address of a workspace of one op.
    pub(crate) fn scratch_address(&mut self, bytes: usize) -> Result<Address> {
        let address = self.workspaces.take(self.memory.weights.driver(), bytes)?;
        if let Some(current) = &mut self.current {
            current.own.push(address..address + bytes as u64);
        }
        Ok(address)
    }
}

impl Workspaces<'_> {
    /// Takes the next workspace, of at least this many bytes, and returns its address.
    fn take(&mut self, driver: &Arc<dyn Driver>, bytes: usize) -> Result<Address> {
        let left = self.memory.get(self.untaken);
        if left.is_none_or(|memory| memory.bytes() < bytes) {
            let memory = Memory::new(driver, bytes)?;
            self.memory.insert(self.untaken, memory);
        }
        let address = self.memory[self.untaken].address();
        self.untaken += 1;
        Ok(address)
    }
}
