//! The list of kernel calls to which ops append theirs, with addresses of buffers, state tensors and weights.

use std::collections::HashMap;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use waterline_quant::Matrix;

use super::levels::Accesses;
use super::{Call, Finish, Form, Parameter, Queued, Rows};
use crate::cuda::decode::gemv::Gemv;
use crate::cuda::decode::kernel;
use crate::cuda::decode::mailbox::Recurrence;
use crate::cuda::driver::weights::{PLAIN, STORED, Weights};
use crate::cuda::driver::{Address, Memory, Queue, TensorCores};
use crate::error::Result;
use crate::operands::{Access, Operand, View};
use crate::state::{HEADER, Kv, StatePlan};
use crate::weights::Vector;

/// An op, and the memory that it names: [`crate::ops::Op::access`].
#[derive(Clone, Debug)]
pub struct OpMemory {
    /// Its index in the program.
    pub op: usize,
    /// The named memory, and workspaces that it shares with other ops.
    pub accesses: Accesses,
    /// Private workspaces.
    pub own: Vec<Range<Address>>,
}

/// The kernels of one session's program, in order.
pub struct Launches<'a> {
    /// Tokens of the largest chunk: 1 for the decode program.
    pub tokens: usize,
    /// Whether each token of a chunk gets the bits that it gets in a step.
    pub(crate) as_steps: bool,
    /// The row of the buffers where the chunk begins.
    pub(crate) row: usize,
    /// Where the tokens that were read before this chunk are counted, if not in the state.
    pub(crate) position: Option<Address>,
    pub(crate) plan: &'a StatePlan,
    pub(crate) arena: Address,
    pub(crate) ids: Address,
    pub(crate) buffers: &'a [Memory],
    pub(crate) weights: &'a Weights,
    pub(crate) queue: &'a dyn Queue,
    pub(crate) kv: Kv,
    pub(crate) sms: usize,
    /// How many ops that fill the device run at once with the current one, itself included.
    pub sharing: usize,
    pub(crate) tensor_cores: TensorCores,
    pub(crate) shared_memory: usize,
    /// Workspaces that ops share, by purpose: bytes and address.
    pub(crate) shared: HashMap<&'static str, (usize, Address)>,
    /// Workspaces, owned by the session.
    pub(crate) scratch: &'a mut Vec<Memory>,
    /// The first of them that ops may still take.
    pub untaken: usize,
    /// Whether the program routes tokens to experts or partitions: then a difference in the last bit of a sum may change the routing
    /// and all that follows, so products are those of the CPU as far as possible.
    pub has_routing: bool,
    /// Whether the calls become ops of the decode kernel.
    pub(crate) persistent: bool,
    pub(crate) calls: Vec<Queued>,
    /// The op whose calls are appended.
    pub(crate) current: Option<OpMemory>,
    /// Whether no two ops read what this one writes, so that the one that does may compute it: [`Deferred`].
    pub read_once: bool,
    /// An op that the next call computes too.
    pub(crate) taken_over: Option<usize>,
    /// The work of the last call, if it does nothing else and the next op may do it instead.
    pub(crate) deferred: Option<Deferred>,
}

/// Work of a call that the next op may do itself.
#[derive(Clone, Copy)]
pub enum Deferred {
    /// It gives the heads of queries and keys, of these columns, the length of one.
    UnitHeads([Rows; 2]),
    /// It rotates heads by their position.
    Rotation(Rotation),
}

/// Queries, keys and values in columns of their own, the first two rotated by their position.
#[derive(Clone, Copy)]
pub struct Rotation {
    /// Where they are written.
    pub columns: [Rows; 3],
    /// Values of a query's or key's head.
    pub head_dim: i32,
    /// Their inputs.
    pub from: RotaryInputs,
}

/// The inputs of rotated queries and keys, and of their values: `RotaryInputs` in attend.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RotaryInputs {
    /// Queries, keys and values.
    pub columns: [Rows; 3],
    /// Angles per position of the rotated pairs of values.
    pub frequencies: Address,
    /// The number of pairs.
    pub pairs: i32,
    /// Multiplies cosines and sines.
    pub magnitude: f32,
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
    /// No kernels yet, for chunks of up to `tokens`; workspaces of ops are added to `scratch`.
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
            row: 0,
            position: None,
            has_routing: false,
            persistent,
            plan: memory.plan,
            arena: memory.arena,
            ids: memory.ids,
            buffers: memory.buffers,
            weights: memory.weights,
            queue: memory.queue,
            kv: memory.kv,
            sms: driver.sms() as usize,
            sharing: 1,
            tensor_cores: driver.tensor_cores(),
            shared_memory: driver.shared_memory(),
            shared: HashMap::new(),
            untaken: scratch.len(),
            scratch,
            calls: Vec::new(),
            current: None,
            taken_over: None,
            deferred: None,
            read_once: false,
        }
    }

    /// The kernels, in order.
    pub fn into_calls(self) -> Vec<Queued> {
        #[cfg(any(test, feature = "emulator"))]
        assert!(!(self.persistent && self.calls.iter().any(Queued::exceeds_op)));
        self.calls
    }
}

impl Launches<'_> {
    /// The calls that follow are those of op number `op`.
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

    /// The calls that follow belong to no op.
    pub fn end(&mut self) {
        self.current = None;
    }

    /// The calls that follow also use this workspace, which ops share and in which nothing outlives an op.
    pub(crate) fn also_writes(&mut self, memory: Range<Address>) {
        if let Some(current) = &mut self.current {
            current.accesses.writes.push(memory);
        }
    }

    /// Appends a kernel.
    pub fn push(&mut self, call: Call) {
        self.queue_call(call, Form::Waits);
    }

    /// Appends a kernel that prefetches weights before it calls `wait_for_dependencies`.
    pub(crate) fn push_prefetching(&mut self, call: Call) {
        self.queue_call(call, Form::Prefetches);
    }

    /// Appends the step of a recurrence of the decode kernel.
    pub(crate) fn push_recurrence(&mut self, call: Call, recurrence: Recurrence) {
        self.queue_call(call, Form::Recurrence(recurrence));
    }

    /// Appends a streaming GEMV.
    pub(crate) fn push_gemv(&mut self, call: Call, gemv: Gemv) {
        self.queue_call(call, Form::Gemv(gemv));
    }

    /// Narrows the memory of the last call to a part of what its op names, so that in the decode kernel it depends on fewer calls. The
    /// op's own workspaces need not be listed.
    pub(crate) fn narrow_accesses(&mut self, reads: &[Range<Address>], writes: &[Range<Address>]) {
        if let Some(queued) = self.calls.last_mut() {
            queued.accesses = Some(Accesses {
                reads: reads.to_vec(),
                writes: writes.to_vec(),
            });
        }
    }

    /// Says of the last call that a block's tokens may follow one another, whatever the other blocks do.
    pub fn is_block_local(&mut self) {
        if let Some(queued) = self.calls.last_mut() {
            queued.block_local = true;
        }
    }

    /// Says of the last call how a batch may join it with another one.
    pub(crate) fn may_finish(&mut self, finish: Finish) {
        if let Some(queued) = self.calls.last_mut() {
            queued.finish = Some(finish);
        }
    }

    /// Whether a call is known to write exactly this memory.
    pub fn writes(&self, memory: &Range<Address>) -> bool {
        let accesses = self
            .calls
            .iter()
            .filter_map(|queued| queued.accesses.as_ref());
        accesses
            .flat_map(|accesses| &accesses.writes)
            .any(|written| written == memory)
    }

    /// Drops the last call, which was deferred: the current op computes it too, by its next call.
    pub(crate) fn take_over(&mut self) {
        self.deferred = None;
        let of = self.calls.pop().and_then(|queued| queued.of);
        if let (Some(of), Some(current)) = (of, &mut self.current) {
            self.taken_over = Some(of.op);
            current.accesses.reads.extend(of.accesses.reads);
            current.accesses.writes.extend(of.accesses.writes);
        }
    }

    /// The last call computes a part of the current op too.
    pub(crate) fn join_last(&mut self) {
        if let (Some(queued), Some(current)) = (self.calls.last_mut(), &self.current) {
            queued.also.push(current.op);
        }
    }

    /// The last call, if it is a streaming GEMV.
    pub(crate) fn last_gemv(&mut self) -> Option<(&mut Call, &mut Gemv)> {
        match self.calls.last_mut()? {
            Queued {
                call,
                form: Form::Gemv(gemv),
                ..
            } => Some((call, gemv)),
            _ => None,
        }
    }

    fn queue_call(&mut self, call: Call, form: Form) {
        self.deferred = None;
        self.calls.push(Queued {
            of: self.current.clone(),
            also: self.taken_over.take().into_iter().collect(),
            ..Queued::new(call, form)
        });
    }

    /// Whether the calls become ops of the decode kernel, of which each SM runs one block.
    pub fn persistent(&self) -> bool {
        self.persistent
    }

    /// Threads of a block that runs a prologue: in the decode kernel all consumer threads.
    pub(crate) fn prologue_threads(&self) -> usize {
        if self.persistent {
            kernel::THREADS
        } else {
            256
        }
    }

    /// The type of cached keys and values in kernels.
    pub fn kv(&self) -> &'static str {
        match self.kv {
            Kv::F16 => "half",
            Kv::F32 => "float",
        }
    }

    /// Bytes of a cached key's or value's number.
    pub(crate) fn kv_bytes(&self) -> usize {
        match self.kv {
            Kv::F16 => 2,
            Kv::F32 => 4,
        }
    }

    /// Streaming multiprocessors of the device.
    pub fn sms(&self) -> usize {
        self.sms
    }

    /// The part of the SMs that the current op may take, given the ops that run concurrently.
    pub(crate) fn share_of_sms(&self) -> usize {
        (self.sms / self.sharing).max(1)
    }

    /// The tensor cores of its SMs.
    pub(crate) fn tensor_cores(&self) -> TensorCores {
        self.tensor_cores
    }

    /// Bytes of shared memory that a block may have.
    pub(crate) fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    /// Columns of a buffer, a `Rows`.
    pub fn rows(&self, view: View) -> Rows {
        let buffer = self.buffers[view.buffer].address();
        let first = self.row * view.stride + view.start;
        Rows {
            first: buffer + (first * size_of::<f32>()) as u64,
            stride: view.stride as i32,
            width: view.width as i32,
        }
    }

    /// Columns of a buffer as a parameter of type `Rows`.
    pub fn view(&self, view: View) -> Parameter {
        Parameter::value("Rows", self.rows(view))
    }

    /// Address of a state tensor.
    pub fn state_address(&self, tensor: usize) -> Address {
        self.arena + self.plan.tensors()[tensor].offset as u64
    }

    /// The memory of a state tensor.
    pub fn state_bytes(&self, tensor: usize) -> Range<Address> {
        let first = self.state_address(tensor);
        first..first + self.plan.tensors()[tensor].bytes as u64
    }

    /// The shape of a state tensor.
    pub(crate) fn state_shape(&self, tensor: usize) -> &[usize] {
        &self.plan.tensors()[tensor].shape
    }

    /// A state tensor as one row of `width` values.
    pub fn state_rows(&self, tensor: usize, width: usize) -> Rows {
        Rows {
            first: self.state_address(tensor),
            stride: width as i32,
            width: width as i32,
        }
    }

    /// A state tensor as a pointer to `kind`.
    pub fn state(&self, kind: &str, tensor: usize) -> Parameter {
        Parameter::pointer(kind, self.state_address(tensor))
    }

    /// Tokens read before this chunk, a `const u64*`.
    pub fn position(&self) -> Parameter {
        let position = self.position.unwrap_or_else(|| self.state_address(HEADER));
        Parameter::pointer("const u64", position)
    }

    /// The tokens of the chunk, a `const u32*`.
    pub fn ids(&self) -> Parameter {
        Parameter::pointer("const u32", self.ids)
    }

    /// Address of a small tensor.
    pub(crate) fn vector_address(&self, vector: &Vector) -> Result<Address> {
        self.upload(bytemuck::cast_slice(vector))
    }

    /// Address of a small tensor, or 0.
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

    /// The device's copy of bytes that live as long as the model.
    pub fn upload(&self, bytes: &[u8]) -> Result<Address> {
        self.weights.upload(self.queue, bytes, PLAIN, || None)
    }

    /// Address of a matrix in the layout that kernels read: in the host's memory where the device reads it there, else of a copy.
    pub(crate) fn matrix_address(&self, matrix: &Matrix) -> Result<Address> {
        let bytes = matrix.bytes();
        if matrix.has_device_layout()
            && let Some(address) = self.weights.share(bytes)?
        {
            return Ok(address);
        }
        let pack = || matrix.device_layout();
        self.weights.upload(self.queue, bytes, STORED, pack)
    }

    /// Address of the workspace that ops share for `purpose`. Nothing in it outlives an op.
    pub(crate) fn shared_address(
        &mut self,
        purpose: &'static str,
        bytes: usize,
    ) -> Result<Address> {
        let address = match self.shared.get(purpose) {
            Some(&(room, address)) if room >= bytes => address,
            _ => {
                let address = self.scratch_address(bytes)?;
                self.shared.insert(purpose, (bytes, address));
                address
            }
        };
        self.also_writes(address..address + bytes as u64);
        Ok(address)
    }

    /// Address of a workspace of one op.
    pub(crate) fn scratch_address(&mut self, bytes: usize) -> Result<Address> {
        let left = self.scratch.get(self.untaken);
        if left.is_none_or(|memory| memory.bytes() < bytes) {
            let memory = Memory::new(self.weights.driver(), bytes)?;
            self.scratch.insert(self.untaken, memory);
        }
        let address = self.scratch[self.untaken].address();
        self.untaken += 1;
        if let Some(current) = &mut self.current {
            current.own.push(address..address + bytes as u64);
        }
        Ok(address)
    }
}
