//! Helpers of the kernel tests, which compare the emulator, or a GPU if there is one, with the CPU's code.

mod attend;
mod attend_blocks;
mod experts;
mod gemv_prologue;
mod hax;
mod head;
mod partitions;
mod prepare;
mod products;
mod recur;
mod rig;
mod sample;
mod score;
mod trapezoid;
#[cfg(feature = "emulator")]
mod unsuitable;

use std::sync::Arc;

use waterline_quant::{Activations, Bytes, Format, Matrix, Output};

use crate::cuda::Device;
use crate::cuda::decode::control::Control;
use crate::cuda::decode::kernel::DecodeKernel;
use crate::cuda::driver::weights::Weights;
use crate::cuda::driver::{Address, Launch, Memory, Queue};
use crate::cuda::schedule::{Launches, Queued, SessionMemory};
use crate::state::{Kv, StatePlan};

pub(crate) use crate::devices::{device, persistent_device};

pub(crate) fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

pub(crate) fn matrix(format: &'static Format, rows: usize, cols: usize, seed: u32) -> Matrix {
    let values = numbers(seed, rows * cols);
    let mut bytes = vec![0; format.tensor_bytes(&[rows, cols]).expect("a shape")];
    format.encode_or_imitate(&values, &mut bytes);
    Matrix::new(format, rows, cols, Bytes::from_vec(bytes)).expect("a matrix")
}

/// Factor of the tests' tolerances for a product in this format: with Q4_1 and Q5_1 the CPU rounds sums of codes separately, to f16.
pub(super) fn slack(format: &Format) -> f32 {
    match format.name {
        "Q4_1" | "Q5_1" => 300.0,
        _ => 1.0,
    }
}

/// Computes the product of a matrix with one token's inputs on the CPU.
pub(crate) fn product(matrix: &Matrix, inputs: &Activations) -> Vec<f32> {
    let mut product = vec![0.0f32; matrix.rows()];
    let out = Output::new(&mut product, matrix.rows());
    // SAFETY: one thread, columns that the output has.
    unsafe { matrix.mul_rows(0..matrix.rows(), 0, inputs, &out, 0) };
    product
}

/// Buffers 0 (residual), 1 (inputs), 2 (product), 3 (output) of `widths`.
pub(crate) struct Bench {
    pub device: Arc<Device>,
    pub queue: Box<dyn Queue>,
    buffers: Vec<Memory>,
    weights: Weights,
    plan: StatePlan,
}

impl Bench {
    pub fn new(device: Arc<Device>, widths: [usize; 4], tokens: usize) -> Self {
        let queue = Arc::clone(device.driver()).queue().expect("a queue");
        let memory = |width: &usize| Memory::new(device.driver(), width * tokens * 4);
        Bench {
            buffers: widths.iter().map(|w| memory(w).expect("memory")).collect(),
            weights: Weights::new(Arc::clone(device.driver())),
            plan: StatePlan::default(),
            queue,
            device,
        }
    }

    /// Writes the first values of a buffer.
    pub fn write(&self, buffer: usize, values: &[f32]) {
        let place = self.buffers[buffer].address();
        let written = self.queue.write(place, bytemuck::cast_slice(values));
        written.expect("a copy");
    }

    /// Reads the first values of a buffer.
    pub fn read(&self, buffer: usize, count: usize) -> Vec<f32> {
        let mut values = vec![0.0f32; count];
        let place = self.buffers[buffer].address();
        let bytes = bytemuck::cast_slice_mut(&mut values);
        self.queue.read(place, bytes).expect("a copy");
        values
    }

    /// Runs calls as the ops of a decode kernel.
    pub(crate) fn run_decode(&self, calls: &[Queued], blocks: usize) {
        let control = Control::new(self.device.driver(), &*self.queue);
        let control = Arc::new(control.expect("memory"));
        let program = DecodeKernel::new(&[calls], blocks, &self.device, &*self.queue, &control);
        let program = program.expect("a program").expect("room for it");
        self.queue.launch(&program.launch(0)).expect("a launch");
        let failure = control.read(&*self.queue).expect("the end");
        failure.expect("every wait in time");
    }

    pub fn launches<'a>(&'a self, tokens: usize, scratch: &'a mut Vec<Memory>) -> Launches<'a> {
        let memory = self.memory(&self.plan, 0);
        let mut launches = Launches::new(&memory, scratch, tokens, false);
        launches.limits.sms = 1;
        launches
    }

    /// Returns the memory of a session whose state has this layout and address.
    pub fn memory<'a>(&'a self, plan: &'a StatePlan, arena: Address) -> SessionMemory<'a> {
        SessionMemory {
            plan,
            arena,
            ids: 0,
            buffers: &self.buffers,
            weights: &self.weights,
            queue: &*self.queue,
            kv: Kv::F32,
        }
    }

    /// Launches calls for this many tokens.
    pub fn run(&self, calls: &[Queued], tokens: usize) {
        for launch in self.compile(calls, tokens) {
            self.queue.launch(&launch).expect("a launch");
        }
    }

    fn compile(&self, calls: &[Queued], tokens: usize) -> Vec<Launch> {
        let kernels = self.device.kernels(&calls.iter().collect::<Vec<_>>());
        let launches = calls.iter().zip(kernels.expect("kernels"));
        launches
            .map(|(queued, kernel)| queued.launch(kernel, tokens))
            .collect()
    }
}
