use super::tests::neutral;
use super::*;
use proptest::prelude::*;

/// The documented steps, written with full sorts and f64.
fn reference(logits: &[f32], params: &SamplerParams, number: f64) -> (u32, Vec<u32>) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let best = logits[order[0]];
    let weight = |i: usize| ((logits[i] - best) / params.temperature).exp() as f64;
    let total: f64 = order.iter().map(|&i| weight(i)).sum();
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for &i in &order {
        kept.push(i);
        sum += weight(i);
        if sum >= params.top_p as f64 * total {
            break;
        }
    }
    kept.retain(|&i| weight(i) >= params.min_p as f64);
    kept.sort();
    let total: f64 = kept.iter().map(|&i| weight(i)).sum();
    let mut sum = 0.0;
    let chosen = kept.iter().find(|&&i| {
        sum += weight(i);
        sum > number * total
    });
    (
        *chosen.unwrap() as u32,
        kept.iter().map(|&i| i as u32).collect(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn equals_the_reference(
        // Multiples of 1/4 make ties, also at the cutoffs.
        quarters in prop::collection::vec(-20i32..20, 1..700),
        // Odd fractions keep sums away from the cutoffs, where rounding alone would decide.
        (top_k, top_p, min_p) in (
            prop_oneof![Just(0usize), 1usize..8, 8usize..300],
            prop_oneof![Just(1.0f32), 0.1237f32..0.9991],
            prop_oneof![Just(0.0f32), 0.0013f32..0.7],
        ),
        temperature in 0.31f32..3.0,
        seed: u64,
    ) {
        let logits: Vec<f32> = quarters.iter().map(|&q| q as f32 / 4.0).collect();
        let params = SamplerParams { top_k, top_p, min_p, temperature, seed, ..neutral() };
        let mut state = SamplerState::new(seed);
        let number = SamplerState::new(seed).draw();
        let mut sampler = Sampler::new(params.clone(), logits.len()).unwrap();
        let capacity = sampler.candidates.capacity();
        let token = sampler.sample(&logits, (&[], &[]), &mut state).unwrap();
        let kept: Vec<u32> = sampler.candidates.iter().map(|c| c.token).collect();
        prop_assert_eq!((token, kept), reference(&logits, &params, number));
        prop_assert_eq!(sampler.candidates.capacity(), capacity);
    }
}
