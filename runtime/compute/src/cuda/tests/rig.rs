//! Runs a single op on the CPU and on the emulator, or on a GPU if there is one, for tests.

use std::sync::{Arc, Mutex};

use half::f16;
use waterline_quant::Activations;

use crate::cpu::{Buffers, Frame, Pool};
use crate::cuda::Device;
use crate::cuda::decode::control::Control;
use crate::cuda::decode::kernel::DecodeKernel;
use crate::cuda::driver::Memory;
use crate::cuda::driver::weights::Weights;
use crate::cuda::schedule::{Launches, Queued, SessionMemory};
use crate::cuda::tests::numbers;
use crate::ops::Op;
use crate::state::{Arena, Kv, StateDtype, StatePlan};

/// An op and how to compare it. Its outputs are in one of the buffers.
pub(crate) struct Comparison<'a> {
    pub device: &'a Arc<Device>,
    pub op: &'a dyn Op,
    pub plan: &'a Arc<StatePlan>,
    /// Widths of the buffers, three or more.
    pub widths: &'a [usize],
    /// The buffer of the op's outputs.
    pub output: usize,
    pub kv: Kv,
    /// Whether the op runs in a decode kernel, token by token.
    pub persistent: bool,
    /// Maximum difference of an output or a state.
    pub tolerance: f32,
}

impl Comparison<'_> {
    /// Reads tokens in chunks of these lengths on the device and on the CPU, and compares outputs and the state. `fill(buffer, values)`
    /// makes the inputs of all tokens.
    pub fn read(&self, chunks: &[usize], fill: impl Fn(usize, &mut [f32])) {
        self.read_after(0, chunks, fill);
    }

    /// Like [`read`](Self::read), after `cached` tokens, whose keys and values are random numbers in the state tensors of 16 bits.
    pub fn read_after(&self, cached: usize, chunks: &[usize], fill: impl Fn(usize, &mut [f32])) {
        let (widths, plan, op) = (self.widths, self.plan, self.op);
        let driver = self.device.driver();
        let tokens: usize = chunks.iter().sum();
        let made = (0..widths.len()).map(|buffer| {
            let mut values = vec![0.0; widths[buffer] * tokens];
            fill(buffer, &mut values);
            values
        });
        let inputs: Vec<Vec<f32>> = made.collect();
        let most = chunks.iter().copied().max().expect("chunks");
        let blocks = driver.resident_blocks().ok();
        if self.persistent && blocks.is_none() {
            crate::skipped::skipped("persistent programs");
            return;
        }
        let queue = Arc::clone(driver).queue().expect("a queue");
        let memory = |bytes: usize| Memory::new(driver, bytes).expect("memory");
        let rooms = widths.iter();
        let rooms = rooms.map(|width| memory(width * most * size_of::<f32>()));
        let buffers: Vec<Memory> = rooms.collect();
        let state = memory(plan.bytes());
        queue.clear(state.address(), plan.bytes()).expect("zeros");
        let weights = Weights::new(Arc::clone(driver));
        let mut scratch = Vec::new();
        let memory = SessionMemory {
            plan,
            arena: state.address(),
            ids: 0,
            buffers: &buffers,
            weights: &weights,
            queue: &*queue,
            kv: self.kv,
        };
        let mut launches = Launches::new(&memory, &mut scratch, most, self.persistent);
        launches.begin(0, &op.access());
        op.launch(&mut launches).expect("launches");
        let calls = launches.into_calls();
        assert!(
            !calls.iter().any(Queued::exceeds_op),
            "a call of other memory"
        );
        let program = match blocks {
            Some(blocks) if self.persistent => {
                let control = Arc::new(Control::new(driver, &*queue).expect("memory"));
                let program = DecodeKernel::new(&[&calls], blocks, self.device, &*queue, &control);
                Some(program.expect("a program").expect("room for it"))
            }
            _ => None,
        };
        let kernels = match &program {
            Some(_) => Vec::new(),
            None => {
                let calls: Vec<_> = calls.iter().collect();
                self.device.kernels(&calls).expect("kernels")
            }
        };
        let launches_of = |chunk: usize| match &program {
            Some(program) => vec![program.launch(0)],
            None => {
                let launches = calls.iter().zip(&kernels);
                launches
                    .map(|(queued, &kernel)| queued.launch(kernel, chunk))
                    .collect()
            }
        };

        let pool = Pool::new(1).expect("no thread");
        let room = Mutex::new(vec![f32::NAN; op.scratch(most)]);
        let mut common = vec![f32::NAN; op.common(1)];
        let mut arena = Arena::new(Arc::clone(plan)).expect("memory");
        let widest = widths.iter().copied().max().unwrap_or(1);
        let mut rounded = Activations::new(most, widest).expect("memory");
        let mut cpu = Buffers::new(widths, most).expect("memory");
        if cached > 0 {
            for slot in plan.tensors() {
                if slot.dtype == StateDtype::F16 {
                    let random = numbers(slot.offset as u32, slot.bytes / size_of::<f16>());
                    let random: Vec<f16> = random.into_iter().map(f16::from_f32).collect();
                    let place = &mut arena.bytes_mut()[slot.offset..][..slot.bytes];
                    place.copy_from_slice(bytemuck::cast_slice(&random));
                }
            }
            queue.write(state.address(), arena.bytes()).expect("a copy");
        }
        let mut read = 0;
        for &chunk in chunks {
            let position = cached + read;
            queue
                .write(state.address(), &(position as u64).to_le_bytes())
                .expect("a copy");
            arena.bytes_mut()[..8].copy_from_slice(&(position as u64).to_le_bytes());
            for (buffer, &width) in widths.iter().enumerate() {
                let rows = &inputs[buffer][read * width..][..chunk * width];
                let place = buffers[buffer].address();
                queue
                    .write(place, bytemuck::cast_slice(rows))
                    .expect("a copy");
                cpu.get_mut(buffer)[..rows.len()].copy_from_slice(rows);
            }
            for launch in launches_of(chunk) {
                queue.launch(&launch).expect("a launch");
            }
            op.run(&mut Frame {
                pool: &pool,
                buffers: &mut cpu,
                inputs: &mut rounded,
                scratch: std::slice::from_ref(&room),
                common: &mut common,
                arena: &mut arena,
                tokens: &vec![0; chunk],
                position: position as u64,
                in_step_order: false,
            });
            let width = widths[self.output];
            let mut found = vec![0.0f32; chunk * width];
            let place = buffers[self.output].address();
            queue
                .read(place, bytemuck::cast_slice_mut(&mut found))
                .expect("a copy");
            for (i, (found, expected)) in found.iter().zip(cpu.get(self.output)).enumerate() {
                let (t, column) = (position + i / width, i % width);
                assert!(
                    (found - expected).abs() < self.tolerance,
                    "token {t}, column {column}: {found}, on the CPU {expected}"
                );
            }
            read += chunk;
        }
        let mut found = vec![0; plan.bytes()];
        queue.read(state.address(), &mut found).expect("a copy");
        for (number, slot) in plan.tensors().iter().enumerate() {
            let bytes = slot.offset..slot.offset + slot.bytes;
            let (found, expected) = (&found[bytes.clone()], &arena.bytes()[bytes]);
            if slot.dtype != StateDtype::F32 {
                assert_eq!(found, expected, "slot {number}");
                continue;
            }
            let floats = |bytes: &[u8]| -> Vec<f32> {
                let numbers = bytes.as_chunks().0.iter();
                numbers.map(|&b| f32::from_le_bytes(b)).collect()
            };
            for (found, expected) in floats(found).iter().zip(&floats(expected)) {
                let same = found == expected || (found - expected).abs() < self.tolerance;
                assert!(same, "slot {number}: {found}, on the CPU {expected}");
            }
        }
    }
}
