//! Where ops write their kernels: gives them addresses of buffers, slots and weights.

use std::collections::HashMap;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use waterline_quant::Matrix;

use super::driver::{Address, Argument, Kernel, Launch, Memory, Queue, TensorCores};
use super::levels::Touched;
use super::passed::{Link, Recurrence};
use super::persistent;
use super::ring_products::Product;
use super::weights::{PLAIN, STORED, Weights};
use crate::error::Result;
use crate::operands::{Access, Operand, View};
use crate::state::{HEADER, Kv, StatePlan};
use crate::weights::Vector;

/// One parameter of a kernel: its type there, and its bytes.
#[derive(Clone)]
pub(crate) struct Parameter {
    kind: String,
    bytes: Argument,
    tokens: bool,
}

impl Parameter {
    /// A value whose layout in the kernel, `kind`, is that of `T`.
    pub fn value<T: Pod>(kind: &str, value: T) -> Self {
        let mut words = vec![0u64; size_of::<T>().div_ceil(8)].into_boxed_slice();
        bytemuck::cast_slice_mut(&mut words)[..size_of::<T>()]
            .copy_from_slice(bytemuck::bytes_of(&value));
        Parameter {
            kind: kind.into(),
            bytes: Argument(words),
            tokens: false,
        }
    }

    /// A pointer to numbers of type `kind`, such as `const float`.
    pub fn pointer(kind: &str, address: Address) -> Self {
        Parameter::value(&format!("{kind}*"), address)
    }

    /// An `int`.
    pub fn int(value: usize) -> Self {
        Parameter::value("int", i32::try_from(value).expect("dimensions fit an int"))
    }

    /// The number of tokens in the chunk, an `int`.
    pub fn tokens() -> Self {
        Parameter {
            tokens: true,
            ..Parameter::int(1)
        }
    }
}

/// Columns of a buffer, as kernels see them: `Rows` in `prelude.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Rows {
    /// First column of the first token.
    pub first: Address,
    /// Values from one token to the next.
    pub stride: i32,
    /// Number of columns.
    pub width: i32,
}

impl Rows {
    /// Where the first token's columns lie.
    pub fn bytes(self) -> Range<Address> {
        self.first..self.first + (self.width as usize * size_of::<f32>()) as u64
    }

    /// Whether every token begins at a multiple of 16 bytes.
    pub fn is_aligned(self) -> bool {
        self.first.is_multiple_of(16) && self.stride % 4 == 0
    }
}

/// Blocks of a launch.
#[derive(Clone, Copy)]
pub(crate) enum Grid {
    /// This many.
    Blocks(usize),
    /// One for every token: `blockIdx.x` is the token.
    Tokens,
    /// This many for every token: `blockIdx.y` is the token.
    EachToken(usize),
    /// This many for every tile of so many tokens: `blockIdx.y` is the tile.
    EachTile(usize, usize),
    /// This many for every tile of lists of tokens: `blockIdx.y` is the tile.
    EachListedTile {
        blocks: usize,
        /// Tokens of a tile.
        tile: usize,
        /// Lists. Each begins with a tile of its own.
        lists: usize,
        /// Lists in which each token stands.
        used: usize,
    },
}

impl Grid {
    /// Blocks along x and y for a chunk.
    pub fn blocks(self, tokens: usize) -> [u32; 3] {
        let (x, y) = match self {
            Grid::Blocks(x) => (x, 1),
            Grid::Tokens => (tokens, 1),
            Grid::EachToken(x) => (x, tokens),
            Grid::EachTile(x, tile) => (x, tokens.div_ceil(tile)),
            Grid::EachListedTile {
                blocks,
                tile,
                lists,
                used,
            } => (blocks, tokens * used / tile + lists),
        };
        [x as u32, y as u32, 1]
    }
}

/// A kernel to launch: a function template of a `.cu` file with its template arguments.
pub(crate) struct Call {
    /// The text of the file that defines it.
    pub source: &'static str,
    /// The function with its template arguments, such as `recur<128, 64>`.
    pub kernel: String,
    /// Blocks.
    pub grid: Grid,
    /// Threads of a block; a multiple of 32.
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Parameters, in order.
    pub parameters: Vec<Parameter>,
}

impl Call {
    /// The declaration of the function's parameters.
    pub fn types(&self) -> Vec<&str> {
        self.parameters.iter().map(|p| p.kind.as_str()).collect()
    }

    /// Where the parameters lie, one after another in one piece of memory.
    pub fn offsets(&self) -> impl Iterator<Item = usize> {
        self.parameters.iter().scan(0, |end, parameter| {
            let at = *end;
            *end += size_of_val(&*parameter.bytes.0).next_multiple_of(16);
            Some(at)
        })
    }

    /// Bytes of the parameters in one piece of memory.
    pub fn packed_bytes(&self) -> usize {
        let bytes = |parameter: &Parameter| size_of_val(&*parameter.bytes.0).next_multiple_of(16);
        self.parameters.iter().map(bytes).sum()
    }

    /// The bytes of the parameters, in order.
    pub fn values(&self) -> impl Iterator<Item = &[u64]> {
        self.parameters.iter().map(|parameter| &*parameter.bytes.0)
    }

    /// The arguments, and which of them are the number of tokens.
    pub fn arguments(&self) -> (Vec<Argument>, Vec<usize>) {
        let arguments = self.parameters.iter().map(|p| p.bytes.clone()).collect();
        let tokens = |i: &usize| self.parameters[*i].tokens;
        (
            arguments,
            (0..self.parameters.len()).filter(tokens).collect(),
        )
    }
}

/// What a kernel does before its input is there.
pub(crate) enum Form {
    /// Nothing.
    Waits,
    /// It asks for weights, and calls `await_previous` itself.
    Streams,
    /// In a persistent program: a product whose weights come through its ring.
    Product(Product),
    /// In a persistent program: the step of a recurrence.
    Recurrence(Recurrence),
}

/// A call in its place.
pub(crate) struct Queued {
    /// What is called.
    pub call: Call,
    /// How it begins.
    pub form: Form,
    /// The part of its op's memory that it touches, where that is not all.
    pub(super) touched: Option<Touched>,
    /// The op that it belongs to.
    pub(super) of: Option<OpMemory>,
    /// Ops whose work, or a part of it, it does besides.
    pub(super) also: Vec<usize>,
    /// Whether the blocks of a token read nothing that another block wrote of the tokens before, but what earlier calls did.
    pub(super) block_local: bool,
    /// Whether its parameters come from a table, which has them for each column of a program: `blockIdx.z` is the column.
    pub(super) by_column: bool,
}

/// An op, and the memory of what it names: [`crate::ops::Op::access`].
#[derive(Clone, Debug)]
pub(super) struct OpMemory {
    /// Its place in the program.
    pub op: usize,
    /// What it names, and memory that it works in beside other ops.
    pub touched: Touched,
    /// Memory that no other op has.
    pub own: Vec<Range<Address>>,
}

impl Queued {
    pub(super) fn new(call: Call, form: Form) -> Self {
        Queued {
            call,
            form,
            touched: None,
            of: None,
            also: Vec::new(),
            block_local: false,
            by_column: false,
        }
    }

    /// The product that it is, if its weights come through a persistent program's ring.
    pub(super) fn product(&self) -> Option<&Product> {
        match &self.form {
            Form::Product(product) => Some(product),
            _ => None,
        }
    }

    /// The recurrence whose step it is in a persistent program.
    pub(super) fn recurrence(&self) -> Option<&Recurrence> {
        match &self.form {
            Form::Recurrence(recurrence) => Some(recurrence),
            _ => None,
        }
    }

    /// The memory that it touches: at most what its op names. Calls of no op may touch anything.
    pub(super) fn touched(&self) -> Option<Touched> {
        let part = match &self.form {
            Form::Product(product) => product.touched(),
            Form::Recurrence(recurrence) => Some(recurrence.touched()),
            Form::Waits | Form::Streams => self.touched.clone(),
        };
        part.or_else(|| Some(self.of.as_ref()?.touched.clone()))
    }

    /// Whether it says to touch memory that its op does not name.
    #[cfg(test)]
    pub(super) fn strays(&self) -> bool {
        let (Some(touched), Some(of)) = (self.touched(), &self.of) else {
            return false;
        };
        let named = &of.touched;
        let inside = |part: &Range<Address>, all: &[Range<Address>]| {
            let mut all = all.iter().chain(&of.own);
            part.is_empty() || all.any(|one| one.start <= part.start && part.end <= one.end)
        };
        let read = |part| inside(part, &named.reads) || inside(part, &named.writes);
        !touched.reads.iter().all(read)
            || !touched
                .writes
                .iter()
                .all(|part| inside(part, &named.writes))
    }

    /// Whether the kernel itself calls `await_previous`.
    pub(super) fn streams(&self) -> bool {
        !matches!(self.form, Form::Waits)
    }

    /// How values are passed to it and from it.
    pub(super) fn link(&self) -> Link<'_> {
        match &self.form {
            Form::Product(product) => Link::Product(product),
            Form::Recurrence(recurrence) => Link::Recurrence(recurrence),
            Form::Waits | Form::Streams => Link::Barrier,
        }
    }

    /// The call of `kernel` for a chunk of so many tokens.
    pub fn launch(&self, kernel: Kernel, tokens: usize) -> Launch {
        let (mut arguments, counts) = self.call.arguments();
        for argument in counts {
            arguments[argument].0[0] = tokens as u64;
        }
        Launch {
            kernel,
            grid: self.call.grid.blocks(tokens),
            threads: self.call.threads as u32,
            shared: self.call.shared as u32,
            arguments,
            together: false,
        }
    }
}

/// The kernels of one session's program, in order.
pub(crate) struct Launches<'a> {
    /// Tokens of the largest chunk: 1 for the decode program.
    pub tokens: usize,
    /// Whether each token of a chunk gets the bits that it gets in a step.
    pub(super) as_steps: bool,
    /// The row of the buffers where the chunk begins.
    pub(super) row: usize,
    /// Where the tokens that were read before this chunk are counted, if not in the state.
    pub(super) position: Option<Address>,
    pub(super) plan: &'a StatePlan,
    pub(super) arena: Address,
    pub(super) ids: Address,
    pub(super) buffers: &'a [Memory],
    pub(super) weights: &'a Weights,
    pub(super) queue: &'a dyn Queue,
    pub(super) kv: Kv,
    pub(super) processors: usize,
    pub(super) tensor_cores: TensorCores,
    pub(super) shared_memory: usize,
    /// Working memory that ops share, by what it is for: bytes and where it lies.
    pub(super) shared: HashMap<&'static str, (usize, Address)>,
    /// Session-owned working memory that ops reserve.
    pub(super) scratch: &'a mut Vec<Memory>,
    /// Whether the calls become the phases of a persistent program.
    pub(super) persistent: bool,
    pub(super) calls: Vec<Queued>,
    /// The op whose calls are written.
    pub(super) current: Option<OpMemory>,
    /// Ops whose work the next call does.
    pub(super) taken_over: Vec<usize>,
    /// A call that the next one may make superfluous, and the columns that it changes.
    pub(super) deferred: Option<(Queued, Vec<Rows>)>,
}

/// The memory of a session that kernels read and write.
#[derive(Clone, Copy)]
pub(crate) struct SessionMemory<'a> {
    /// Layout of the state.
    pub plan: &'a StatePlan,
    /// Where the state lies.
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
    /// No kernels yet, for chunks of up to `tokens`; what ops reserve is added to `scratch`.
    pub(crate) fn new(
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
            persistent,
            plan: memory.plan,
            arena: memory.arena,
            ids: memory.ids,
            buffers: memory.buffers,
            weights: memory.weights,
            queue: memory.queue,
            kv: memory.kv,
            processors: driver.processors() as usize,
            tensor_cores: driver.tensor_cores(),
            shared_memory: driver.shared_memory(),
            shared: HashMap::new(),
            scratch,
            calls: Vec::new(),
            current: None,
            taken_over: Vec::new(),
            deferred: None,
        }
    }

    /// The kernels, in order.
    pub(crate) fn into_calls(self) -> Vec<Queued> {
        #[cfg(test)]
        assert!(!(self.persistent && self.calls.iter().any(Queued::strays)));
        self.calls
    }
}

impl Launches<'_> {
    /// The calls that follow are those of op number `op`.
    pub(crate) fn begin(&mut self, op: usize, access: &Access) {
        let memory = |operands: &[Operand]| -> Vec<Range<Address>> {
            let memory = operands.iter().map(|operand| match *operand {
                Operand::Columns(view) => self.rows(view).bytes(),
                Operand::State(tensor) => self.state_bytes(tensor),
            });
            memory.collect()
        };
        self.current = Some(OpMemory {
            op,
            touched: Touched {
                reads: memory(&access.reads),
                writes: memory(&access.writes),
            },
            own: Vec::new(),
        });
    }

    /// The calls that follow belong to no op.
    pub(crate) fn end(&mut self) {
        self.current = None;
    }

    /// The calls that follow also use this memory, in which the op leaves nothing and other ops work too.
    pub fn works_in(&mut self, memory: Range<Address>) {
        if let Some(current) = &mut self.current {
            current.touched.writes.push(memory);
        }
    }

    /// Appends a kernel.
    pub fn push(&mut self, call: Call) {
        self.queue_call(call, Form::Waits);
    }

    /// Appends a kernel that asks for its weights before it calls `await_previous`.
    pub fn push_streaming(&mut self, call: Call) {
        self.queue_call(call, Form::Streams);
    }

    /// Appends the step of a recurrence in a persistent program.
    pub fn push_recurrence(&mut self, call: Call, recurrence: Recurrence) {
        self.queue_call(call, Form::Recurrence(recurrence));
    }

    /// Appends a product whose weights come through a persistent program's ring.
    pub(super) fn push_product(&mut self, call: Call, product: Product) {
        self.queue_call(call, Form::Product(product));
    }

    /// Says that of what its op names the call which was appended last touches this only, besides memory of the op's own, so that in
    /// a persistent program it need not wait for those whose outputs it does not need.
    pub fn touches(&mut self, reads: &[Range<Address>], writes: &[Range<Address>]) {
        if let Some(queued) = self.calls.last_mut() {
            queued.touched = Some(Touched {
                reads: reads.to_vec(),
                writes: writes.to_vec(),
            });
        }
    }

    /// Says of the call that was appended last that a block's tokens may follow one another, whatever the other blocks do.
    pub fn is_block_local(&mut self) {
        if let Some(queued) = self.calls.last_mut() {
            queued.block_local = true;
        }
    }

    /// Whether a call is known to write all of this memory's part of the token.
    pub fn writes(&self, memory: &Range<Address>) -> bool {
        let touched = self
            .calls
            .iter()
            .filter_map(|queued| queued.touched.as_ref());
        touched
            .flat_map(|touched| &touched.writes)
            .any(|written| written == memory)
    }

    /// Appends a kernel that changes nothing but these columns, unless the next call does what it does.
    pub fn defer(&mut self, call: Call, columns: Vec<Rows>) {
        let queued = Queued {
            of: self.current.clone(),
            ..Queued::new(call, Form::Streams)
        };
        self.deferred = Some((queued, columns));
    }

    /// Whether a call is deferred that changes just these columns; then it is dropped, and the caller does what it does.
    pub fn take_over(&mut self, columns: &[Rows]) -> bool {
        let same = |(_, deferred): &(Queued, Vec<Rows>)| {
            deferred.len() == columns.len() && columns.iter().all(|rows| deferred.contains(rows))
        };
        let dropped = self.deferred.take_if(|call| same(call));
        let of = dropped.as_ref().and_then(|(queued, _)| queued.of.as_ref());
        self.taken_over.extend(of.map(|of| of.op));
        dropped.is_some()
    }

    /// The call that was appended last does some of the current op's work.
    pub fn join_last(&mut self) {
        if let (Some(queued), Some(current)) = (self.calls.last_mut(), &self.current) {
            queued.also.push(current.op);
        }
    }

    /// In a persistent program, the product whose weights come through the ring if nothing follows it yet, with its call.
    pub fn last_product(&mut self) -> Option<(&mut Call, &mut Product)> {
        if self.deferred.is_some() {
            return None;
        }
        match self.calls.last_mut()? {
            Queued {
                call,
                form: Form::Product(product),
                ..
            } => Some((call, product)),
            _ => None,
        }
    }

    fn queue_call(&mut self, call: Call, form: Form) {
        if let Some((queued, _)) = self.deferred.take() {
            self.calls.push(queued);
        }
        self.calls.push(Queued {
            of: self.current.clone(),
            also: std::mem::take(&mut self.taken_over),
            ..Queued::new(call, form)
        });
    }

    /// Whether the calls become the phases of a persistent program, of which each processor runs one block.
    pub fn persistent(&self) -> bool {
        self.persistent
    }

    /// Threads of a block that makes the input of a product: all that go through the phases of a persistent program.
    pub fn gather_threads(&self) -> usize {
        if self.persistent {
            persistent::THREADS
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
    pub fn kv_bytes(&self) -> usize {
        match self.kv {
            Kv::F16 => 2,
            Kv::F32 => 4,
        }
    }

    /// Processors of the device.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// The tensor cores of its processors.
    pub fn tensor_cores(&self) -> TensorCores {
        self.tensor_cores
    }

    /// Bytes of shared memory that a block may have.
    pub fn shared_memory(&self) -> usize {
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

    /// Where a slot of the state lies.
    pub fn state_address(&self, slot: usize) -> Address {
        self.arena + self.plan.tensors[slot].offset as u64
    }

    /// The memory of a slot.
    pub fn state_bytes(&self, slot: usize) -> Range<Address> {
        let first = self.state_address(slot);
        first..first + self.plan.tensors[slot].bytes as u64
    }

    /// The shape of a slot.
    pub fn state_shape(&self, slot: usize) -> &[usize] {
        &self.plan.tensors[slot].shape
    }

    /// A slot of the state as one row of `width` values.
    pub fn state_rows(&self, slot: usize, width: usize) -> Rows {
        Rows {
            first: self.state_address(slot),
            stride: width as i32,
            width: width as i32,
        }
    }

    /// A slot of the state as a pointer to `kind`.
    pub fn state(&self, kind: &str, slot: usize) -> Parameter {
        Parameter::pointer(kind, self.state_address(slot))
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

    /// Where a small tensor lies.
    pub fn vector_address(&self, vector: &Vector) -> Result<Address> {
        self.upload(bytemuck::cast_slice(vector))
    }

    /// Where a small tensor lies, or null.
    pub fn optional_address(&self, vector: Option<&Vector>) -> Result<Address> {
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

    /// Where a matrix lies in the layout that its kernels read: in the host's memory, if the device reads it there, or
    /// else in a copy.
    pub fn matrix_address(&self, matrix: &Matrix) -> Result<Address> {
        let bytes = matrix.bytes();
        if matrix.format().device_apart_bytes() == 0
            && let Some(address) = self.weights.share(bytes)?
        {
            return Ok(address);
        }
        let pack = || matrix.device_layout();
        self.weights.upload(self.queue, bytes, STORED, pack)
    }

    /// Where working memory begins that all ops share which reserve it for `purpose`: nothing stays in it from one to the next.
    pub fn shared_address(&mut self, purpose: &'static str, bytes: usize) -> Result<Address> {
        let address = match self.shared.get(purpose) {
            Some(&(room, address)) if room >= bytes => address,
            _ => {
                let address = self.scratch_address(bytes)?;
                self.shared.insert(purpose, (bytes, address));
                address
            }
        };
        self.works_in(address..address + bytes as u64);
        Ok(address)
    }

    /// Where working memory of one op begins.
    pub fn scratch_address(&mut self, bytes: usize) -> Result<Address> {
        let memory = Memory::new(self.weights.driver(), bytes)?;
        let address = memory.address();
        self.scratch.push(memory);
        if let Some(current) = &mut self.current {
            current.own.push(address..address + bytes as u64);
        }
        Ok(address)
    }
}
