//! Tiled value heads in the one-kernel form: several recurrences read the same queries and keys.

use std::sync::Arc;

use serde_json::json;

use crate::engine::StepProgram;
use crate::session::Session;
use crate::synthetic::{block, model, options, spec, tokens, weights};

#[test]
fn every_recurrence_of_tiled_value_heads_reads_unit_queries_and_keys() {
    let Some(device) = crate::devices::device() else {
        return;
    };
    for (tiled, conv) in [(true, json!(4)), (true, json!(null)), (false, json!(4))] {
        let delta = json!({
            "heads": 2, "value_heads": 4, "head_dim": 8, "value_dim": 8, "conv": conv, "conv_bias": false, "gate": "silu",
            "negative_eigenvalues": false, "decay": true, "head_gates": null, "norm_eps": 1e-5, "tiled": tiled,
        });
        let layer = block("gated_deltanet", delta, Some(40));
        let spec = spec(32, vec![layer.clone(), layer]);
        let model = model(&spec, &weights(&spec, 4));
        let mut on_cpu = Session::new(Arc::clone(&model), options(8, 64)).expect("a session");
        let mut options = options(8, 64);
        options.device = Some(Arc::clone(&device));
        options.step = StepProgram::Persistent;
        let mut session = Session::new(model, options).expect("a session");
        for token in tokens(spec.vocab, 12, 6) {
            on_cpu.feed(&[token]).expect("a token");
            session.feed(&[token]).expect("a token");
            let expected = on_cpu.logits().expect("logits");
            let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let found = session.logits().expect("logits");
            for (found, expected) in found.iter().zip(expected) {
                let error = (found - expected).abs() / largest;
                assert!(
                    error < 1e-3,
                    "tiled {tiled}: {found}, on the CPU {expected}"
                );
            }
        }
    }
}
