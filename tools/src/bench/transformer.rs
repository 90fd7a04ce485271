//! The KV cache of a Transformer of a model's size, for comparison with the model's state.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waterline::ModelSpec;

/// Ratio of the hidden width to the width of all keys in the preset `transformer-1.3b`, where 32 query heads share 8 KV heads.
const ASSUMED_SHARING: usize = 4;

/// The cache of a Transformer with the same number of layers: a key and a value per layer and token, 16 bits per number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransformerCache {
    /// Bytes added by each token.
    pub bytes_per_token: u64,
    /// Whether the KV heads are those of the model's attention; otherwise their width is a quarter of the hidden width.
    pub own_kv_heads: bool,
}

impl TransformerCache {
    /// Returns the cache for a model that is not itself a Transformer.
    pub fn new(spec: &ModelSpec) -> Option<Self> {
        let layers: Vec<Value> = spec.layers.iter().map(|layer| layer.to_json()).collect();
        let mixers = layers.iter().filter(|layer| layer.get("mixer").is_some());
        let is_full_attention = |layer: &Value| {
            layer["mixer"] == "attention" && layer.get("window").is_none_or(Value::is_null)
        };
        if mixers.clone().all(is_full_attention) {
            return None;
        }
        let own = mixers.clone().find_map(kv_width);
        let width = own.unwrap_or((spec.hidden / ASSUMED_SHARING) as u64);
        Some(TransformerCache {
            bytes_per_token: 2 * 2 * width * mixers.count() as u64,
            own_kv_heads: own.is_some(),
        })
    }

    /// Size of the cache after `tokens` tokens.
    pub fn bytes(&self, tokens: u64) -> u64 {
        self.bytes_per_token.saturating_mul(tokens)
    }

    /// Describes the origin of the number of KV heads.
    pub fn heads(&self) -> &'static str {
        if self.own_kv_heads {
            "the model's KV heads"
        } else {
            "one KV head for four query heads, as transformer-1.3b has"
        }
    }
}

/// Returns the width of all keys of a layer with attention.
fn kv_width(layer: &Value) -> Option<u64> {
    let is_attention =
        |part: &&Value| part["mixer"] == "attention" || part["mixer"] == "shared_block";
    let parts = layer.get("parts").and_then(Value::as_array);
    let attention = Some(layer)
        .filter(is_attention)
        .or_else(|| parts?.iter().find(is_attention))
        .or_else(|| layer.get("attention"))
        .or_else(|| layer.get("swa"))?;
    Some(attention["kv_heads"].as_u64()? * attention["head_dim"].as_u64()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cache(layers: Value) -> Option<TransformerCache> {
        let model =
            json!({"vocab": 256, "hidden": 64, "norm_eps": 1e-6, "tied": true, "layers": layers});
        TransformerCache::new(&ModelSpec::from_json("a test", &model).unwrap())
    }

    fn attention() -> Value {
        json!({"mixer": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16, "rope_theta": 1e4, "bias": false,
            "out_bias": false, "gate": false})
    }

    fn recurrent() -> Value {
        json!({"mixer": "gated_deltanet", "heads": 1, "value_heads": 1, "head_dim": 64, "value_dim": 64, "conv": 4,
            "conv_bias": false, "gate": "silu", "negative_eigenvalues": false, "decay": true, "norm_eps": 1e-6})
    }

    #[test]
    fn a_hybrid_is_compared_by_its_own_kv_heads() {
        let found = cache(json!([recurrent(), attention()])).unwrap();
        assert!(found.own_kv_heads);
        assert_eq!(found.bytes(10), 10 * 2 * 2 * 32 * 2);
    }

    #[test]
    fn a_recurrent_model_is_compared_by_the_presets_kv_heads() {
        let found = cache(json!([recurrent(), recurrent(), recurrent()])).unwrap();
        assert!(!found.own_kv_heads);
        assert_eq!(found.bytes_per_token, 3 * 2 * 2 * 16);
    }

    #[test]
    fn a_transformer_is_not_compared_with_itself() {
        assert_eq!(cache(json!([attention(), attention()])), None);
        let mut windowed = attention();
        windowed["window"] = json!(8);
        assert!(cache(json!([windowed])).is_some());
    }
}
