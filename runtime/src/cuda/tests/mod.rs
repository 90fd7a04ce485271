//! Matrix products on the emulator, or on a GPU where there is one, against the CPU's.

mod attend;
mod attend_blocks;
#[cfg(feature = "emulator")]
mod chunks;
#[cfg(feature = "emulator")]
mod deadline;
mod experts;
mod gemv_prologue;
mod head;
mod levels;
#[cfg(feature = "emulator")]
mod lost;
mod partitions;
mod prepare;
mod recur;
mod rig;
mod sample;
mod score;
#[cfg(feature = "emulator")]
mod shared;

use std::collections::HashMap;
use std::sync::Arc;

use waterline_quant::{Activations, Bytes, FORMATS, Format, Matrix, Output, Rounding};

use crate::cuda::Device;
use crate::cuda::decode::control::Control;
use crate::cuda::decode::gemv::Epilogue;
use crate::cuda::decode::kernel::DecodeKernel;
use crate::cuda::decode::pipeline::SMALLEST;
use crate::cuda::driver::weights::Weights;
use crate::cuda::driver::{Launch, Memory, Queue};
use crate::cuda::gemm::WeightMatrix;
use crate::cuda::schedule::source::Source;
use crate::cuda::schedule::{Launches, Queued};
use crate::functions::Activation;
use crate::operands::{INPUTS, View};
use crate::ops::rig::plan;
use crate::ops::{DeviceOp, Gate, Prepare};
use crate::state::{Kv, StateDtype, StatePlan};

/// A device to test on; without one the test says so and ends.
pub(crate) fn device() -> Option<Arc<Device>> {
    if let Ok(device) = Device::open(0) {
        return Some(device);
    }
    #[cfg(feature = "emulator")]
    return Some(Device::emulated());
    #[cfg(not(feature = "emulator"))]
    {
        crate::skipped::skipped("GPU or emulator");
        None
    }
}

/// A device that runs persistent programs, and how many blocks of one it holds.
pub(crate) fn persistent_device() -> Option<(Arc<Device>, usize)> {
    let device = device()?;
    match device.driver().resident_blocks() {
        Ok(blocks) => Some((device, blocks)),
        Err(reason) => {
            crate::skipped::skipped(&format!("persistent programs, {reason}"));
            None
        }
    }
}

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
    format.encode(&values, &mut bytes);
    // Both sides of a comparison round inputs alike. A format lives as long as the program.
    let format = Box::leak(Box::new(format.rounded_as_on_devices()));
    Matrix::new(format, rows, cols, Bytes::from_vec(bytes)).expect("a matrix")
}

/// How kernels round the inputs of products with such a matrix.
pub(super) fn device_rounding(format: &Format) -> Option<Rounding> {
    format.rounding().map(|_| Rounding::Device)
}

/// The product of a matrix with one token's inputs, on the CPU.
pub(crate) fn product(matrix: &Matrix, inputs: &Activations) -> Vec<f32> {
    let mut product = vec![0.0f32; matrix.rows()];
    let out = Output::new(&mut product, matrix.rows());
    // SAFETY: one thread, columns that the output has.
    unsafe { matrix.mul_rows(0..matrix.rows(), inputs, &out, 0) };
    product
}

/// Buffers 0 (residual), 1 (inputs), 2 (product), 3 (output) of `widths`.
pub(crate) struct Bench {
    device: Arc<Device>,
    queue: Box<dyn Queue>,
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
            plan: StatePlan {
                tensors: Vec::new(),
                bytes: 0,
            },
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

    /// The first values of a buffer.
    pub fn read(&self, buffer: usize, count: usize) -> Vec<f32> {
        let mut values = vec![0.0f32; count];
        let place = self.buffers[buffer].address();
        let bytes = bytemuck::cast_slice_mut(&mut values);
        self.queue.read(place, bytes).expect("a copy");
        values
    }

    /// Runs calls as the ops of a decode kernel.
    pub fn run_decode(&self, calls: &[Queued], blocks: usize) {
        let calls: Vec<&Queued> = calls.iter().collect();
        let control = Control::new(self.device.driver(), &*self.queue);
        let control = Arc::new(control.expect("memory"));
        let program = DecodeKernel::new(&calls, blocks, &self.device, &*self.queue, &control);
        let program = program.expect("a program").expect("room for it");
        self.queue.launch(&program.launch(0)).expect("a launch");
        let failure = control.read(&*self.queue).expect("the end");
        failure.expect("every wait in time");
    }

    pub fn launches<'a>(&'a self, tokens: usize, scratch: &'a mut Vec<Memory>) -> Launches<'a> {
        Launches {
            as_steps: false,
            row: 0,
            position: None,
            tokens,
            plan: &self.plan,
            arena: 0,
            ids: 0,
            buffers: &self.buffers,
            weights: &self.weights,
            queue: &*self.queue,
            kv: Kv::F32,
            sms: 1,
            tensor_cores: self.device.driver().tensor_cores(),
            shared_memory: self.device.driver().shared_memory(),
            shared: HashMap::new(),
            scratch,
            persistent: false,
            calls: Vec::new(),
            current: None,
            taken_over: Vec::new(),
            deferred: None,
        }
    }

    /// Launches calls for so many tokens.
    pub fn run(&self, calls: &[Queued], tokens: usize) {
        for launch in self.compile(calls, tokens) {
            self.queue.launch(&launch).expect("a launch");
        }
    }

    fn compile(&self, calls: &[Queued], tokens: usize) -> Vec<Launch> {
        let source = Source::of(&calls.iter().collect::<Vec<_>>());
        let kernels = self.device.kernels(&source).expect("kernels");
        let launches = calls.iter().zip(&source.of_call);
        launches
            .map(|(queued, &kernel)| queued.launch(kernels[kernel], tokens))
            .collect()
    }
}

#[test]
fn products_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let small = |format: &Format| match format.block_len {
        1 => 37,
        length => 2 * length,
    };
    // The last case has several tiles along each side, partial ones among them.
    let cases = [
        (1, 1, 70),
        (3, 3, 70),
        (70, 70, 70),
        (1, 70, 70),
        (150, 200, 300),
    ];
    for (tokens, most, first_rows) in cases {
        for (index, &format) in FORMATS.iter().enumerate() {
            let cols = if first_rows > 70 { 768 } else { small(format) };
            let rows = [first_rows, 5];
            let width = rows[0] + rows[1];
            let bench = Bench::new(Arc::clone(&device), [cols, cols, width, width], most);
            let x = numbers(7, tokens * cols);
            bench
                .queue
                .write(
                    bench.buffers[INPUTS - 1].address(),
                    bytemuck::cast_slice(&x),
                )
                .expect("a copy");
            let bias: crate::weights::Vector = numbers(9, rows[1]).into();
            let matrices = [
                matrix(format, rows[0], cols, index as u32),
                matrix(&waterline_quant::F32, rows[1], cols, 50),
            ];
            let mut scratch = Vec::new();
            let mut launches = bench.launches(most, &mut scratch);
            let prologue = launches
                .prologue(View::whole(0, cols), None)
                .expect("an input");
            let factors = [
                WeightMatrix::plain(&matrices[0]),
                WeightMatrix {
                    bias: Some(&bias),
                    column: rows[0],
                    ..WeightMatrix::plain(&matrices[1])
                },
            ];
            let output = View::whole(3, width);
            launches
                .gemm(prologue, &factors, output, false)
                .expect("launches");
            let calls = launches.calls;
            for launch in bench.compile(&calls, tokens) {
                bench.queue.launch(&launch).expect("a launch");
            }
            let mut found = vec![0.0f32; tokens * width];
            let place = bench.buffers[3].address();
            bench
                .queue
                .read(place, bytemuck::cast_slice_mut(&mut found))
                .expect("a copy");

            let mut inputs = Activations::new(tokens, cols).expect("memory");
            inputs.load(&x, tokens, cols, device_rounding(format));
            let mut expected = vec![0.0f32; tokens * width];
            let out = Output::new(&mut expected, width);
            for WeightMatrix { matrix, column, .. } in factors {
                // SAFETY: one thread, columns that the output has.
                unsafe { matrix.mul_rows(0..matrix.rows(), &inputs, &out, column) };
            }
            for row in expected.chunks_mut(width) {
                for (x, bias) in row[rows[0]..].iter_mut().zip(bias.iter()) {
                    *x += bias;
                }
            }
            // In tiles the inputs are not rounded to 8 bits, and on tensor cores they are bf16.
            let tolerance = match (most >= 8, format.name == "F32") {
                (true, false) if format.is_integer_dot() => 0.02,
                (true, false) => 0.005,
                _ => 1e-5,
            } * (cols as f32).sqrt();
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!(
                    (found - expected).abs() <= tolerance,
                    "{format}, {tokens} of {most} tokens, value {i}: {found}, on the CPU {expected}"
                );
            }
        }
    }
}

/// A product of one token with two of three parts of matrices of every format.
#[test]
fn products_of_chosen_parts_leave_the_others_as_they_are() {
    let Some(device) = device() else { return };
    const PARTS: usize = 3;
    const CHOSEN: [f32; 2] = [2.0, 0.0];
    for (index, &format) in FORMATS.iter().enumerate() {
        let cols = 2 * format.block_len.max(32);
        let heights = [37, 2];
        let rows = heights.map(|height| PARTS * height);
        let width = rows[0] + rows[1];
        let bench = Bench::new(Arc::clone(&device), [cols, 4, 1, width], 1);
        let x = numbers(7, cols);
        bench.write(0, &x);
        bench.write(1, &CHOSEN);
        bench.write(3, &vec![0.5; width]);
        let bias: crate::weights::Vector = numbers(9, rows[1]).into();
        let matrices = [
            matrix(format, rows[0], cols, index as u32),
            matrix(&waterline_quant::F32, rows[1], cols, 50),
        ];
        let mut scratch = Vec::new();
        let mut launches = bench.launches(1, &mut scratch);
        let prologue = launches.prologue(View::whole(0, cols), None);
        let factors = [
            WeightMatrix::plain(&matrices[0]),
            WeightMatrix {
                bias: Some(&bias),
                column: rows[0],
                ..WeightMatrix::plain(&matrices[1])
            },
        ];
        let (route, output) = (View::whole(1, 4), View::whole(3, width));
        launches
            .gemv_chosen(
                prologue.expect("an input"),
                &factors,
                (PARTS, route),
                output,
            )
            .expect("launches");
        let calls = launches.calls;
        for launch in bench.compile(&calls, 1) {
            bench.queue.launch(&launch).expect("a launch");
        }
        let found = bench.read(3, width);

        let mut inputs = Activations::new(1, cols).expect("memory");
        inputs.load(&x, 1, cols, device_rounding(format));
        let mut expected = vec![0.5f32; width];
        let out = Output::new(&mut expected, width);
        for (WeightMatrix { matrix, column, .. }, height) in factors.iter().zip(heights) {
            for part in CHOSEN.map(|part| part as usize) {
                // SAFETY: one thread, columns that the output has.
                unsafe {
                    matrix.mul_rows(part * height..(part + 1) * height, &inputs, &out, *column)
                };
            }
        }
        for part in CHOSEN.map(|part| part as usize) {
            let rows_of_part = part * heights[1]..(part + 1) * heights[1];
            for (x, bias) in expected[rows[0]..][rows_of_part.clone()]
                .iter_mut()
                .zip(&bias[rows_of_part])
            {
                *x += bias;
            }
        }
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).abs() <= 1e-5 * (cols as f32).sqrt(),
                "{format}, value {i}: {found}, on the CPU {expected}"
            );
        }
    }
}

/// Two ops' gates on the columns of one product: it finishes the first one's, and the second one's stay an op of the kernel.
#[test]
fn a_product_finishes_the_rows_of_one_stage() {
    let Some((device, blocks)) = persistent_device() else {
        return;
    };
    let (cols, width) = (64, 48);
    let mut bench = Bench::new(Arc::clone(&device), [cols, 1, width, 1], 1);
    // The position, of which gates make no use.
    bench.plan = plan(&[(StateDtype::U64, &[1])]);
    let x = numbers(7, cols);
    bench.write(0, &x);
    let weights = matrix(&waterline_quant::F32, width, cols, 3);
    let mut scratch = Vec::new();
    let mut launches = bench.launches(1, &mut scratch);
    launches.persistent = true;
    let prologue = launches.prologue(View::whole(0, cols), None);
    let output = View::whole(2, width);
    let pushed = launches.gemm(
        prologue.expect("an input"),
        &[WeightMatrix::plain(&weights)],
        output,
        false,
    );
    pushed.expect("an op");
    let part = |start: usize| View {
        start,
        width: width / 2,
        ..output
    };
    for (start, scale) in [(0, 1.0), (width / 2, 2.0)] {
        let prepare = Prepare {
            groups: Vec::new(),
            rope: None,
            gates: vec![(part(start), Gate::Sigmoid { scale })],
        };
        prepare.launch(&mut launches).expect("an op");
    }
    assert_eq!(launches.calls.len(), 2, "one set of gates is finished");

    bench.run_decode(&launches.calls, blocks);
    let found = bench.read(2, width);
    let values = numbers(3, width * cols);
    for (row, (found, weights)) in found.iter().zip(values.chunks(cols)).enumerate() {
        let product: f32 = x.iter().zip(weights).map(|(x, w)| x * w).sum();
        let scale = if row < width / 2 { 1.0 } else { 2.0 };
        let expected = scale / (1.0 + (-product).exp());
        assert!(
            (found - expected).abs() < 1e-5,
            "row {row}: {found}, {expected}"
        );
    }
}

#[test]
fn products_through_the_ring_are_those_of_the_cpu() {
    if let Some((device, blocks)) = persistent_device() {
        check_gemvs(&device, blocks, usize::MAX);
    }
}

#[test]
fn products_in_the_smallest_tiles_are_those_of_the_cpu() {
    if let Some((device, blocks)) = persistent_device() {
        SMALLEST.set(true);
        check_gemvs(&device, blocks, usize::MAX);
    }
}

/// Every product fits into the shared memory of an RTX card, whose wide inputs are no sums of bf16 numbers.
#[cfg(feature = "emulator")]
#[test]
fn products_in_little_shared_memory_are_those_of_the_cpu() {
    // An f32 matrix of 11,008 columns beside one in 8 bits, which no model has, does not fit.
    check_gemvs(&Device::emulated_with_shared(99 << 10), 1, 6688);
}

/// A product of matrices of every format through the rings of a persistent program: twice, so that rows are added to what the
/// output holds, and a gated one.
fn check_gemvs(device: &Arc<Device>, blocks: usize, most_cols: usize) {
    for (index, &format) in FORMATS.iter().enumerate() {
        // A last piece that is not whole, and more pieces than warps; bf16 in whole rows and in tiles. Of what is read by twos, an
        // odd number of entries for a row, and more of them than inputs fit into registers.
        let widths: &[usize] = match format.block_len {
            1 => &[1496, 6688],
            32 => &[1536, 4352, 6656, 11008],
            _ => &[1536, 6656],
        };
        for &cols in widths.iter().filter(|cols| **cols <= most_cols) {
            // Enough for several turns, where a block has all of them; in the wider ones for less than one.
            let rows = if cols < 2048 { [295, 5] } else { [71, 5] };
            let width = rows[0] + rows[1];
            let bench = Bench::new(Arc::clone(device), [cols, cols, width, width], 1);
            let x = numbers(7, cols);
            bench.write(0, &x);
            bench.write(3, &vec![0.0; width]);
            let bias: crate::weights::Vector = numbers(9, rows[1]).into();
            let matrices = [
                matrix(format, rows[0], cols, index as u32),
                matrix(&waterline_quant::F32, rows[1], cols, 50),
                matrix(format, rows[0], cols, 60),
            ];
            let mut scratch = Vec::new();
            let mut launches = bench.launches(1, &mut scratch);
            launches.persistent = true;
            let input = |launches: &Launches| launches.prologue(View::whole(0, cols), None);
            let prologue = input(&launches).expect("an input");
            let factors = [
                WeightMatrix::plain(&matrices[0]),
                WeightMatrix {
                    bias: Some(&bias),
                    column: rows[0],
                    ..WeightMatrix::plain(&matrices[1])
                },
            ];
            for _ in 0..2 {
                launches
                    .gemm(prologue, &factors, View::whole(3, width), true)
                    .expect("ops");
            }
            let gated = [&matrices[0], &matrices[2]].map(WeightMatrix::plain);
            let inner = launches.rows(View::whole(2, width));
            let pushed = launches.push_streaming_gemv(
                prologue,
                &gated,
                inner,
                Epilogue::Gated(Activation::Silu),
            );
            assert!(pushed.expect("ops"), "{format}: rows are aligned");

            bench.run_decode(&launches.calls, blocks);

            let mut inputs = Activations::new(1, cols).expect("memory");
            inputs.load(&x, 1, cols, device_rounding(format));
            let [first, second, third] = [0, 1, 2].map(|i| product(&matrices[i], &inputs));
            let second = second.iter().zip(bias.iter()).map(|(x, bias)| x + bias);
            let sums: Vec<f32> = first
                .iter()
                .copied()
                .chain(second)
                .map(|x| 2.0 * x)
                .collect();
            let gated: Vec<f32> = (first.iter().zip(&third))
                .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
                .collect();
            let largest = sums
                .iter()
                .chain(&gated)
                .fold(0.0f32, |a, x| a.max(x.abs()));
            for (kind, found, expected) in [
                ("sums", bench.read(3, width), &sums),
                ("gated", bench.read(2, width), &gated),
            ] {
                for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                    assert!(
                        (found - expected).abs() <= 1e-5 * largest,
                        "{format}, {cols} columns, {kind} {i}: {found}, on the CPU {expected}"
                    );
                }
            }
        }
    }
}
