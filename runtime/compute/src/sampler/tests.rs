use super::*;

const NONE: (&[u32], &[u32]) = (&[], &[]);

/// Parameters that do not change the distribution.
pub(crate) fn neutral() -> SamplerParams {
    SamplerParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        ..Default::default()
    }
}

fn greedy() -> SamplerParams {
    SamplerParams {
        temperature: 0.0,
        ..neutral()
    }
}

fn sample_with(params: SamplerParams, logits: &[f32], recent: (&[u32], &[u32])) -> u32 {
    let mut state = SamplerState::new(0);
    Sampler::new(params, logits.len())
        .unwrap()
        .sample(logits, recent, &mut state)
        .unwrap()
}

/// Every token that occurs in a long run of draws, sorted, with its share of the draws.
fn shares(params: SamplerParams, logits: &[f32], recent: (&[u32], &[u32])) -> Vec<(u32, f64)> {
    const DRAWS: u32 = 4000;
    let mut state = SamplerState::new(params.seed);
    let mut sampler = Sampler::new(params, logits.len()).unwrap();
    let mut counts = vec![0u32; logits.len()];
    for _ in 0..DRAWS {
        counts[sampler.sample(logits, recent, &mut state).unwrap() as usize] += 1;
    }
    let share = |(token, count): (usize, u32)| (token as u32, count as f64 / DRAWS as f64);
    counts
        .into_iter()
        .enumerate()
        .filter(|c| c.1 > 0)
        .map(share)
        .collect()
}

fn support(params: SamplerParams, logits: &[f32], recent: (&[u32], &[u32])) -> Vec<u32> {
    shares(params, logits, recent)
        .into_iter()
        .map(|(token, _)| token)
        .collect()
}

/// The logits of these probabilities.
fn logs(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_token_of_a_tie() {
    assert_eq!(sample_with(greedy(), &[1.0, 3.0, -2.0, 3.0], NONE), 1);
    let mut logits = vec![0.0; 1000];
    for winner in [999, 640, 639, 63] {
        logits[winner] = 5.0;
        assert_eq!(sample_with(greedy(), &logits, NONE), winner as u32);
    }
    assert_eq!(sample_with(greedy(), &[f32::NEG_INFINITY, -1e30], NONE), 1);
}

#[test]
fn greedy_takes_no_random_number_and_drawing_takes_one() {
    let mut state = SamplerState::new(3);
    Sampler::new(greedy(), 2)
        .unwrap()
        .sample(&[0.0, 1.0], NONE, &mut state)
        .unwrap();
    assert_eq!(state.draws, 0);
    let mut sampler = Sampler::new(
        SamplerParams {
            top_k: 1,
            ..neutral()
        },
        2,
    )
    .unwrap();
    assert_eq!(sampler.sample(&[0.0, 1.0], NONE, &mut state).unwrap(), 1);
    assert_eq!(state.draws, 1);
    sampler
        .sample(&[f32::NAN, 1.0], NONE, &mut state)
        .unwrap_err();
    assert_eq!(state.draws, 1);
}

#[test]
fn bias_entries_add_up() {
    let params = SamplerParams {
        logit_bias: vec![(0, 1.5), (2, 0.5), (0, 1.0)],
        ..greedy()
    };
    assert_eq!(sample_with(params, &[0.0, 2.0, 1.0], NONE), 0);
    let params = SamplerParams {
        logit_bias: vec![(1, -1e9)],
        ..neutral()
    };
    assert_eq!(support(params, &[0.0, 9.0, 0.0], NONE), [0, 2]);
}

#[test]
fn repetition_penalty_divides_positive_and_multiplies_negative_logits_once() {
    let params = SamplerParams {
        repetition_penalty: 2.0,
        ..greedy()
    };
    // 3 / 2 < 1.6; counted twice it would be 0.75.
    assert_eq!(
        sample_with(params.clone(), &[3.0, 1.6, 1.4], (&[0, 0], &[0])),
        1
    );
    assert_eq!(
        sample_with(params.clone(), &[3.0, 1.4, 1.3], (&[0, 0], &[0])),
        0
    );
    // -1 * 2 < -1.5
    assert_eq!(sample_with(params, &[-1.0, -1.5], (&[], &[0])), 1);
}

#[test]
fn frequency_counts_occurrences_and_presence_does_not() {
    let params = SamplerParams {
        frequency_penalty: 0.5,
        ..greedy()
    };
    // Three occurrences: 2 - 1.5 = 0.5.
    assert_eq!(sample_with(params.clone(), &[2.0, 0.6], (&[0, 0], &[0])), 1);
    assert_eq!(sample_with(params, &[2.0, 0.4], (&[0, 0], &[0])), 0);
    let params = SamplerParams {
        presence_penalty: 0.5,
        ..greedy()
    };
    assert_eq!(sample_with(params.clone(), &[2.0, 1.6], (&[0, 0], &[0])), 1);
    assert_eq!(sample_with(params, &[2.0, 1.4], (&[0, 0], &[0])), 0);
}

#[test]
fn repetition_comes_before_the_subtractions_and_after_the_bias() {
    let base = SamplerParams {
        repetition_penalty: 2.0,
        ..greedy()
    };
    // 4 / 2 - 1 = 1; the other way round (4 - 1) / 2 = 1.5.
    let params = SamplerParams {
        presence_penalty: 1.0,
        ..base.clone()
    };
    assert_eq!(sample_with(params, &[4.0, 1.2], (&[], &[0])), 1);
    // (1 + 3) / 2 = 2; the other way round 1 / 2 + 3 = 3.5.
    let params = SamplerParams {
        logit_bias: vec![(0, 3.0)],
        ..base
    };
    assert_eq!(sample_with(params, &[1.0, 2.5], (&[], &[0])), 1);
}

#[test]
fn the_window_is_the_end_of_the_ring() {
    let at = |penalty_window, recent| {
        let params = SamplerParams {
            presence_penalty: 5.0,
            penalty_window,
            ..greedy()
        };
        sample_with(params, &[3.0, 2.0, 1.0, 0.0], recent)
    };
    assert_eq!(at(0, (&[0, 1], &[2])), 0);
    assert_eq!(at(1, (&[1, 2], &[0])), 1);
    assert_eq!(at(2, (&[1, 2], &[0])), 1);
    assert_eq!(at(3, (&[1, 2], &[0])), 3);
    assert_eq!(at(2, (&[2], &[0, 1])), 2);
    assert_eq!(at(100, (&[0, 1], &[])), 2);
    // Tokens without a logit are skipped.
    assert_eq!(at(100, (&[70_000], &[0])), 1);
}

#[test]
fn temperature_scales_log_probabilities() {
    let logits = [0.0, 4f32.ln()];
    let share = |temperature| {
        shares(
            SamplerParams {
                temperature,
                ..neutral()
            },
            &logits,
            NONE,
        )
        .last()
        .unwrap()
        .1
    };
    // Odds of 4, sqrt(4) and 4^2. 0.03 is four standard deviations of 4000 draws.
    for (temperature, expected) in [(1.0, 0.8), (2.0, 2.0 / 3.0), (0.5, 16.0 / 17.0)] {
        assert!((share(temperature) - expected).abs() < 0.03);
    }
    assert_eq!(
        support(
            SamplerParams {
                temperature: 1e-40,
                ..neutral()
            },
            &logits,
            NONE
        ),
        [1]
    );
}

#[test]
fn top_k_keeps_k_and_the_lowest_tokens_of_a_tie() {
    let logits = [1.0, 2.0, 1.0, 2.0, 1.0, -0.0, 0.0];
    let top = |top_k| support(SamplerParams { top_k, ..neutral() }, &logits, NONE);
    assert_eq!(top(1), [1]);
    assert_eq!(top(2), [1, 3]);
    assert_eq!(top(3), [0, 1, 3]);
    assert_eq!(top(4), [0, 1, 2, 3]);
    assert_eq!(top(6), [0, 1, 2, 3, 4, 5]);
    assert_eq!(top(0).len(), 7);
    assert_eq!(top(usize::MAX).len(), 7);
    assert_eq!(
        support(
            SamplerParams {
                top_k: 3,
                ..neutral()
            },
            &[f32::NEG_INFINITY, 0.0, 1.0],
            NONE
        ),
        [1, 2]
    );
}

#[test]
fn top_p_keeps_the_shortest_sufficient_run() {
    let logits = logs(&[0.1, 0.4, 0.2, 0.3]);
    let top = |top_p| support(SamplerParams { top_p, ..neutral() }, &logits, NONE);
    assert_eq!(top(0.01), [1]);
    assert_eq!(top(0.39), [1]);
    assert_eq!(top(0.41), [1, 3]);
    assert_eq!(top(0.69), [1, 3]);
    assert_eq!(top(0.71), [1, 2, 3]);
    assert_eq!(top(0.91), [0, 1, 2, 3]);
}

#[test]
fn min_p_is_relative_to_the_best() {
    let logits = logs(&[0.1, 0.4, 0.2, 0.3]);
    let min = |min_p| support(SamplerParams { min_p, ..neutral() }, &logits, NONE);
    assert_eq!(min(0.24), [0, 1, 2, 3]);
    assert_eq!(min(0.26), [1, 2, 3]);
    assert_eq!(min(0.51), [1, 3]);
    assert_eq!(min(1.0), [1]);
}

#[test]
fn truncations_follow_temperature_and_renormalise() {
    // Squaring gives 0.16, 0.09, 0.04, 0.01 of 0.30: the first two tokens hold 0.83, but 0.7 without the temperature.
    let logits = logs(&[0.4, 0.3, 0.2, 0.1]);
    let params = SamplerParams {
        temperature: 0.5,
        top_p: 0.8,
        ..neutral()
    };
    assert_eq!(support(params, &logits, NONE), [0, 1]);
    assert_eq!(
        support(
            SamplerParams {
                top_p: 0.8,
                ..neutral()
            },
            &logits,
            NONE
        ),
        [0, 1, 2]
    );
    // With two tokens left by top-k, the first has probability 4/7 > 0.5; with all four it has 0.4.
    let params = SamplerParams {
        top_k: 2,
        top_p: 0.5,
        ..neutral()
    };
    assert_eq!(support(params, &logits, NONE), [0]);
    assert_eq!(
        support(
            SamplerParams {
                top_p: 0.5,
                ..neutral()
            },
            &logits,
            NONE
        ),
        [0, 1]
    );
    // Min-p applied first would leave two tokens, the first with probability 4/7 > 0.5.
    let params = SamplerParams {
        top_p: 0.5,
        min_p: 0.6,
        ..neutral()
    };
    assert_eq!(support(params, &logits, NONE), [0, 1]);
    // A high temperature raises the tokens that min-p would cut: the ratio 1/4 becomes 1/2.
    let params = SamplerParams {
        temperature: 2.0,
        min_p: 0.4,
        ..neutral()
    };
    assert_eq!(support(params, &logits, NONE), [0, 1, 2, 3]);
    // The remaining tokens share the full probability: 4/7 and 3/7.
    let params = SamplerParams {
        top_k: 2,
        ..neutral()
    };
    assert!((shares(params, &logits, NONE)[0].1 - 4.0 / 7.0).abs() < 0.03);
}

#[test]
fn a_seed_fixes_the_sequence_and_a_saved_state_continues_it() {
    let logits: Vec<f32> = (0..500).map(|i| ((i * 37 % 101) as f32) * 0.05).collect();
    let mut sampler = Sampler::new(SamplerParams::default(), logits.len()).unwrap();
    let mut run = |state: &mut SamplerState, count: usize| -> Vec<u32> {
        (0..count)
            .map(|_| sampler.sample(&logits, NONE, state).unwrap())
            .collect()
    };
    let mut state = SamplerState::new(9);
    let first = run(&mut state, 20);
    let saved: [u8; 16] = bytemuck::cast(state);
    let rest = run(&mut state, 20);
    assert_eq!(
        run(&mut SamplerState::new(9), 40),
        [first.clone(), rest.clone()].concat()
    );
    assert_eq!(run(&mut bytemuck::cast(saved), 20), rest);
    assert_ne!(run(&mut SamplerState::new(10), 20), first);
}

#[test]
fn draws_follow_the_distribution() {
    const DRAWS: usize = 50_000;
    let weights = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 0.5f32];
    let total: f32 = weights.iter().sum();
    let mut sampler = Sampler::new(neutral(), weights.len()).unwrap();
    let mut state = SamplerState::new(123);
    let mut counts = [0f64; 11];
    for _ in 0..DRAWS {
        counts[sampler.sample(&logs(&weights), NONE, &mut state).unwrap() as usize] += 1.0;
    }
    let chi_square: f64 = counts
        .iter()
        .zip(weights)
        .map(|(count, weight)| {
            let expected = DRAWS as f64 * (weight / total) as f64;
            (count - expected).powi(2) / expected
        })
        .sum();
    // 10 degrees of freedom: 0.1 % and 99.9 % quantiles.
    assert!((1.48..29.6).contains(&chi_square), "{chi_square}");
}

#[test]
fn unusable_logits_are_errors_that_name_the_token() {
    for params in [greedy(), neutral(), SamplerParams::default()] {
        let mut sampler = Sampler::new(params, 40).unwrap();
        let mut fails = |logits: &[f32]| {
            sampler
                .sample(logits, NONE, &mut SamplerState::new(0))
                .unwrap_err()
                .to_string()
        };
        for place in [0, 17, 39] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut logits = [0.0; 40];
                logits[place] = bad;
                assert!(fails(&logits).contains(&format!("token {place} has")));
            }
        }
        assert!(fails(&[f32::NEG_INFINITY; 40]).contains("all are -inf"));
        assert!(fails(&[0.0; 39]).contains("found 39 values, expected 40"));
    }
}

#[test]
fn no_parameters_make_a_logit_infinite() {
    let logits = [1e24, -1e24, 0.0, 1.0, -1.0, 3e-39, f32::NEG_INFINITY];
    let recent: Vec<u32> = (0..65_536).map(|i| i % 7).collect();
    for temperature in [0.0, 1e-45, 1.0, f32::MAX] {
        for factor in [0.001, 1.0, 1000.0] {
            for penalty in [-1e6, 0.0, 1e6] {
                for bias in [-1e9, 1e9] {
                    let params = SamplerParams {
                        temperature,
                        repetition_penalty: factor,
                        frequency_penalty: penalty,
                        presence_penalty: penalty,
                        penalty_window: recent.len(),
                        logit_bias: (0..7).map(|token| (token, bias)).collect(),
                        ..neutral()
                    };
                    let mut sampler = Sampler::new(params, logits.len()).unwrap();
                    let chosen = sampler.sample(&logits, (&recent, &[]), &mut SamplerState::new(1));
                    assert!(chosen.is_ok_and(|token| token < 6));
                }
            }
        }
    }
}

#[test]
fn parameters_out_of_range_are_errors_that_name_them() {
    type Spoil = fn(&mut SamplerParams);
    let cases: [(&str, Spoil); 20] = [
        ("temperature", |p| p.temperature = -0.1),
        ("temperature", |p| p.temperature = f32::NAN),
        ("temperature", |p| p.temperature = f32::INFINITY),
        ("top_p", |p| p.top_p = 0.0),
        ("top_p", |p| p.top_p = 1.1),
        ("min_p", |p| p.min_p = -0.1),
        ("min_p", |p| p.min_p = f32::NAN),
        ("repetition_penalty", |p| p.repetition_penalty = 0.0),
        ("repetition_penalty", |p| p.repetition_penalty = 1e-45),
        ("repetition_penalty", |p| p.repetition_penalty = 1e4),
        ("frequency_penalty", |p| p.frequency_penalty = f32::NAN),
        ("frequency_penalty", |p| p.frequency_penalty = -3e38),
        ("presence_penalty", |p| p.presence_penalty = 1e7),
        ("presence_penalty", |p| p.presence_penalty = f32::INFINITY),
        ("penalty_window", |p| p.penalty_window = usize::MAX),
        ("logit_bias", |p| {
            p.logit_bias = vec![(0, f32::NEG_INFINITY)]
        }),
        ("logit_bias", |p| p.logit_bias = vec![(0, f32::NAN)]),
        ("logit_bias", |p| p.logit_bias = vec![(0, 1.1e9)]),
        ("logit_bias", |p| p.logit_bias = vec![(8, 1.0)]),
        ("vocabulary", |_| ()),
    ];
    for (name, spoil) in cases {
        let mut params = SamplerParams::default();
        spoil(&mut params);
        let vocab = if name == "vocabulary" { 0 } else { 8 };
        let error = Sampler::new(params, vocab).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
    assert!(SamplerParams::default().validate().is_ok());
}

#[test]
fn parameters_survive_json_and_missing_ones_are_defaults() {
    let params = SamplerParams {
        logit_bias: vec![(3, -1e9)],
        seed: u64::MAX,
        ..neutral()
    };
    let json = serde_json::to_string(&params).unwrap();
    assert_eq!(
        serde_json::from_str::<SamplerParams>(&json).unwrap(),
        params
    );
    let partial: SamplerParams = serde_json::from_str(r#"{"top_k": 5, "seed": 1}"#).unwrap();
    assert_eq!(
        partial,
        SamplerParams {
            top_k: 5,
            seed: 1,
            ..Default::default()
        }
    );
}
