use super::*;

#[test]
fn layers_are_read_under_their_former_name() {
    let mixer = mixers::Attention {
        heads: 1,
        kv_heads: 1,
        head_dim: 4,
        ..Default::default()
    };
    let mlp = MlpSpec {
        intermediate: 6,
        ..MlpSpec::default()
    };
    let spec = ModelSpec {
        vocab: 8,
        hidden: 4,
        tied: true,
        layers: vec![LayerSpec::new(Arc::new(mixer), Some(mlp))],
        ..ModelSpec::default()
    };
    let today = spec.to_json();
    let mut former = today.clone();
    former["blocks"] = former["layers"].take();
    former.as_object_mut().unwrap().remove("layers");
    let read = ModelSpec::from_json("a test", &former).unwrap();
    assert_eq!(read.to_json(), today);
}

#[test]
fn what_is_unusual_around_a_sublayer_is_written_and_read_back() {
    let layers = json!([
        { "mlp": { "intermediate": 8, "gated": false, "activation": "squared_relu", "bias": true } },
        {
            "mixer": "attention", "heads": 1, "kv_heads": 1, "head_dim": 4, "bias": false, "out_bias": false,
            "gate": false,
            "mixer_sublayer": { "pre_norm": false, "post_norm": true },
            "mlp": { "intermediate": 8, "gate_multiplier": 0.5, "multiplier": 0.25 },
            "ffn_sublayer": { "multiplier": 0.22 },
        },
    ]);
    let model = json!({
        "vocab": 8, "hidden": 4, "norm_eps": 1e-5, "tied": false, "embedding_multiplier": 12.0,
        "logits_multiplier": 0.125, "logit_softcap": 30.0, "layers": layers,
    });
    let spec = ModelSpec::from_json("a test", &model).unwrap();
    let written = spec.to_json();
    assert_eq!(
        ModelSpec::from_json("a test", &written).unwrap().to_json(),
        written
    );
    assert_eq!(written["layers"][0], layers[0]);
    for key in ["mlp", "mixer_sublayer", "ffn_sublayer"] {
        assert_eq!(written["layers"][1][key], layers[1][key], "{key}");
    }
    let names: Vec<String> = spec.weights().into_iter().map(|w| w.name).collect();
    let has = |name: &str| names.iter().any(|n| n == name);
    assert!(has("blk.0.ffn_norm.weight") && has("blk.0.ffn_up.bias"));
    assert!(!has("blk.0.attn_norm.weight") && !has("blk.0.ffn_gate.weight"));
    assert!(!has("blk.1.attn_norm.weight") && has("blk.1.post_attention_norm.weight"));
    let refused = |layer: Value| {
        let mut model = model.clone();
        model["layers"] = json!([layer]);
        ModelSpec::from_json("a test", &model)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(json!({})).contains("mixer"));
    assert!(refused(json!({ "mlp": { "intermediate": 0 } })).contains("intermediate"));
    let gateless = json!({ "intermediate": 8, "gated": false, "gate_multiplier": 2.0 });
    assert!(refused(json!({ "mlp": gateless })).contains("multipliers"));
}
