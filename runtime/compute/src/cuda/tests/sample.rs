//! Tokens sampled by the kernels, on the emulator or on a GPU, against tokens sampled by the host.

use std::sync::Arc;

use crate::cuda::Device;
use crate::cuda::driver::weights::Weights;
use crate::cuda::driver::{Kernel, Launch, Memory, Queue};
use crate::cuda::schedule::{Launches, Queued, SessionMemory};
use crate::cuda::tests::{device, numbers};
use crate::cuda::token::sample::Sampling;
use crate::sampler::tests::neutral;
use crate::sampler::{Sampler, SamplerParams, SamplerState};
use crate::state::{HEADER, HISTORY, Kv, LOGITS, SAMPLER, StateOptions, StatePlan};

const LOG_LENGTH: usize = 48;

/// The session's state tensors on a device, and the program that samples.
struct Bench {
    queue: Box<dyn Queue>,
    arena: Memory,
    plan: StatePlan,
    sampling: Memory,
    chosen: Memory,
    _ids: Memory,
    _scratch: Vec<Memory>,
    launches: Vec<Launch>,
}

impl Bench {
    fn new(device: &Arc<Device>, vocab: usize) -> Self {
        let options = StateOptions {
            history: LOG_LENGTH,
            ..StateOptions::default()
        };
        let plan = StatePlan::new(vocab, [], &options).expect("a plan");
        let memory = |bytes| Memory::new(device.driver(), bytes).expect("memory");
        let queue = Arc::clone(device.driver()).queue().expect("a queue");
        let (arena, ids, chosen) = (memory(plan.bytes()), memory(4), memory(4));
        let sampling = memory(size_of::<Sampling>());
        let weights = Weights::new(Arc::clone(device.driver()));
        let mut scratch = Vec::new();
        let session = SessionMemory {
            plan: &plan,
            arena: arena.address(),
            ids: ids.address(),
            buffers: &[],
            weights: &weights,
            queue: &*queue,
            kv: Kv::F32,
        };
        let mut launches = Launches::new(&session, &mut scratch, 1, false);
        launches
            .sample(vocab, sampling.address(), chosen.address())
            .expect("launches");
        let calls = launches.calls;
        let kernels = device.kernels(&calls.iter().collect::<Vec<_>>());
        let launch = |(queued, kernel): (&Queued, Kernel)| queued.launch(kernel, 1);
        Bench {
            launches: (calls.iter().zip(kernels.expect("kernels")).map(launch)).collect(),
            queue,
            arena,
            plan,
            sampling,
            chosen,
            _ids: ids,
            _scratch: scratch,
        }
    }

    fn write<T: bytemuck::Pod>(&self, slot: usize, values: &[T]) {
        let at = self.arena.address() + self.plan.tensors()[slot].offset as u64;
        let bytes = bytemuck::cast_slice(values);
        self.queue.write(at, bytes).expect("a copy");
    }

    /// Returns the token that the device samples (`None` if it rejects the logits), and the state of the random numbers afterwards.
    fn sample(
        &self,
        params: &SamplerParams,
        logits: &[f32],
        tokens: &[u32],
        state: SamplerState,
    ) -> (Option<u32>, SamplerState) {
        let mut log = [u32::MAX; LOG_LENGTH];
        for (i, &token) in tokens.iter().enumerate() {
            log[i % LOG_LENGTH] = token;
        }
        self.write(HEADER, &[tokens.len() as u64]);
        self.write(HISTORY, &log);
        self.write(LOGITS, logits);
        self.write(SAMPLER, &[state]);
        let sampling = Sampling::new(params).expect("a device can");
        let bytes = bytemuck::bytes_of(&sampling);
        self.queue
            .write(self.sampling.address(), bytes)
            .expect("a copy");
        for launch in &self.launches {
            self.queue.launch(launch).expect("a launch");
        }
        let mut chosen = [0u32];
        let bytes = bytemuck::cast_slice_mut(&mut chosen);
        self.queue
            .read(self.chosen.address(), bytes)
            .expect("a copy");
        let mut after = [state];
        let at = self.arena.address() + self.plan.tensors()[SAMPLER].offset as u64;
        let bytes = bytemuck::cast_slice_mut(&mut after);
        self.queue.read(at, bytes).expect("a copy");
        let [chosen] = chosen;
        (Some(chosen).filter(|&token| token != u32::MAX), after[0])
    }

    /// Checks that both samplers agree, several times in sequence with the same random numbers.
    fn compare(&self, params: &SamplerParams, logits: &[f32], tokens: &[u32], times: usize) {
        let mut sampler = Sampler::new(params.clone(), logits.len()).expect("parameters");
        let mut state = SamplerState::new(params.seed);
        let kept = &tokens[tokens.len().saturating_sub(LOG_LENGTH)..];
        for time in 0..times {
            let (found, after) = self.sample(params, logits, tokens, state);
            let expected = sampler.sample(logits, (kept, &[]), &mut state).ok();
            assert_eq!(
                (found, after),
                (expected, state),
                "{} logits, time {time}, {params:?}",
                logits.len()
            );
        }
    }
}

/// Makes logits of some kind: smooth, with many ties, all equal, peaked, or partly minus infinity.
fn logits(kind: usize, seed: u32, vocab: usize) -> Vec<f32> {
    let mut values = numbers(seed, vocab);
    for (i, x) in values.iter_mut().enumerate() {
        *x = match kind {
            0 => 6.0 * *x,
            1 => (8.0 * *x).round() / 4.0,
            2 => -0.5,
            3 => 40.0 * x.powi(9),
            _ if i % 3 == 0 => f32::NEG_INFINITY,
            _ => 1e4 * *x,
        };
    }
    values
}

#[test]
fn a_device_samples_the_tokens_that_the_host_samples() {
    let Some(device) = device() else { return };
    for vocab in [1, 255, 2049, 5000] {
        let bench = Bench::new(&device, vocab);
        let pick = numbers(vocab as u32, 4000);
        let mut pick = pick.iter().map(|x| (x + 1.0) / 2.0);
        let mut choose = |among: &[f32]| {
            let at = pick.next().expect("enough") * among.len() as f32;
            among[(at as usize).min(among.len() - 1)]
        };
        for case in 0..40 {
            let params = SamplerParams {
                temperature: choose(&[0.0, 0.3, 0.7, 1.0, 1.3, 40.0, 1e-30]),
                top_k: choose(&[0.0, 0.0, 1.0, 2.0, 40.0, 1100.0, 1e9]) as usize,
                top_p: choose(&[1.0, 0.95, 0.5, 0.9999, 1e-6]),
                min_p: choose(&[0.0, 0.0, 0.05, 0.5, 1.0, 1e-9]),
                repetition_penalty: choose(&[1.0, 1.0, 1.3, 0.8]),
                frequency_penalty: choose(&[0.0, 0.0, 0.4]),
                presence_penalty: choose(&[0.0, 0.0, -0.7]),
                penalty_window: choose(&[0.0, 5.0, 48.0, 4096.0]) as usize,
                seed: case,
                ..SamplerParams::default()
            };
            let read = choose(&[0.0, 7.0, 48.0, 200.0]) as usize;
            let tokens: Vec<u32> = (0..read)
                .map(|i| (i * i % 11 * vocab / 11) as u32)
                .collect();
            let logits = logits(case as usize % 5, 77 * case as u32 + vocab as u32, vocab);
            bench.compare(&params, &logits, &tokens, 2);
        }
    }
}

#[test]
fn ties_beyond_what_is_ordered_at_once_are_cut_at_the_lowest_tokens() {
    let Some(device) = device() else { return };
    let vocab = 3000;
    let bench = Bench::new(&device, vocab);
    let mut logits = vec![0.25; vocab];
    logits[2990] = 0.5;
    for params in [
        SamplerParams {
            top_k: 1500,
            ..neutral()
        },
        SamplerParams {
            top_p: 0.77,
            ..neutral()
        },
        SamplerParams {
            top_k: 2500,
            top_p: 0.6,
            ..neutral()
        },
    ] {
        bench.compare(&params, &logits, &[], 4);
    }
}

#[test]
fn many_draws_meet_every_kept_token() {
    let Some(device) = device() else { return };
    let bench = Bench::new(&device, 300);
    let params = SamplerParams {
        top_k: 5,
        ..neutral()
    };
    let logits: Vec<f32> = (0..300)
        .map(|i| if i % 60 == 7 { 0.0 } else { -9.0 })
        .collect();
    let mut state = SamplerState::new(3);
    let mut met = std::collections::BTreeSet::new();
    for draw in 1..=60 {
        let (token, after) = bench.sample(&params, &logits, &[], state);
        met.insert(token.expect("a token"));
        assert_eq!(
            after,
            SamplerState {
                seed: 3,
                draws: draw
            }
        );
        state = after;
    }
    assert_eq!(met.into_iter().collect::<Vec<_>>(), [7, 67, 127, 187, 247]);
}

#[test]
fn unusable_logits_choose_nothing_and_take_no_random_number() {
    let Some(device) = device() else { return };
    let vocab = 700;
    let bench = Bench::new(&device, vocab);
    let mut cases = vec![vec![f32::NEG_INFINITY; vocab]];
    for (place, bad) in [(0, f32::NAN), (699, f32::NAN), (300, f32::INFINITY)] {
        let mut logits = vec![0.0; vocab];
        logits[place] = bad;
        cases.push(logits);
    }
    for logits in cases {
        for temperature in [0.0, 1.0] {
            let params = SamplerParams {
                temperature,
                presence_penalty: 0.5,
                ..neutral()
            };
            let state = SamplerState::new(1);
            let found = bench.sample(&params, &logits, &[1, 2], state);
            assert_eq!(found, (None, state));
            bench.compare(&params, &logits, &[1, 2], 1);
        }
    }
}

#[test]
fn only_a_bias_needs_the_host() {
    assert!(Sampling::new(&SamplerParams::default()).is_some());
    let params = SamplerParams {
        logit_bias: vec![(3, 0.5)],
        ..SamplerParams::default()
    };
    assert_eq!(Sampling::new(&params), None);
}

#[test]
fn a_large_vocabulary_is_no_different() {
    let Some(device) = device() else { return };
    for vocab in [32_000, 151_936] {
        let bench = Bench::new(&device, vocab);
        let penalized = SamplerParams {
            repetition_penalty: 1.1,
            ..SamplerParams::default()
        };
        let nucleus = SamplerParams {
            top_p: 0.9,
            ..neutral()
        };
        let wide = SamplerParams {
            top_k: 3000,
            top_p: 0.999,
            temperature: 1.5,
            ..neutral()
        };
        for (seed, params) in [penalized, nucleus, wide, neutral()].iter().enumerate() {
            for kind in [0, 3] {
                let logits = logits(kind, 5 + seed as u32, vocab);
                bench.compare(params, &logits, &[7, 77, 777], 1);
            }
        }
    }
}
