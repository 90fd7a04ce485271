//! Directories of quantized weights. FP8, NVFP4, MXFP4 and the integers of compressed-tensors are supported; for other quantizations,
//! the error names them and the files to use instead.

use std::path::Path;

use waterline_quant::safetensors::Checkpoint;

use crate::config::Config;
use crate::error::{Error, Result};

/// Supported values of `quant_method`.
const READ: [&str; 5] = [
    "fp8",
    "fbgemm_fp8",
    "compressed-tensors",
    "modelopt",
    "mxfp4",
];

/// Refuses a directory whose weights use an unsupported quantization. If only the configuration claims one and the tensors are
/// floats, the directory is accepted.
pub(super) fn check(dir: &Path, config: &Config, weights: Option<&Checkpoint>) -> Result<()> {
    let said = config
        .first_object(["quantization_config", "compression_config", "quantization"])
        .map(method);
    let shown = weights.and_then(Checkpoint::foreign_quantization);
    let is_read = |method: &str| READ.contains(&method);
    let method = match (weights, shown, said) {
        (_, Some(shown), said) => said.filter(|said| !is_read(said)).unwrap_or(shown.into()),
        (None, None, Some(said)) if !is_read(&said) => said,
        _ => return Ok(()),
    };
    Err(Error::Unsupported {
        file: dir.display().to_string(),
        what: format!(
            "weights that {method} quantized; take the original directory of the model (BF16 or FP8) or a GGUF file of it"
        ),
    })
}

/// The name of a quantization; MLX's configuration has none.
fn method(quantization: &serde_json::Value) -> String {
    let method = quantization["quant_method"].as_str();
    let method = method.or(quantization["quant_algo"].as_str());
    match method {
        Some("awq") => "AWQ".into(),
        Some("gptq") => "GPTQ".into(),
        Some("bitsandbytes") => "bitsandbytes".into(),
        Some(other) => other.chars().take(40).collect(),
        None => "MLX".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(config: Value) -> Option<String> {
        let config = Config::new("config.json", config).expect("an object");
        let error = check(Path::new("folder"), &config, None).err();
        error.map(|error| error.to_string())
    }

    #[test]
    fn what_is_not_read_is_named_in_a_sentence() {
        for (config, name) in [
            (
                json!({"quantization_config": {"quant_method": "awq", "bits": 4}}),
                "AWQ",
            ),
            (
                json!({"quantization_config": {"quant_method": "gptq"}}),
                "GPTQ",
            ),
            (
                json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
                "bitsandbytes",
            ),
            (
                json!({"quantization": {"bits": 4}, "quantization_config": {"bits": 4}}),
                "MLX",
            ),
        ] {
            let said = refused(config).expect(name);
            let expected = format!("weights that {name} quantized; take the original");
            assert!(said.contains(&expected) && said.contains("GGUF"), "{said}");
        }
        for config in [
            json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}),
            json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}),
            json!({"quantization_config": null}),
            json!({"hidden_size": 8}),
        ] {
            assert_eq!(refused(config), None);
        }
    }
}
