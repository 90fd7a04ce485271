//! Number formats of a file by llama.cpp's names: `q4_k_m` is mostly Q4_K, with more bits for the tensors that suffer most.
//!
//! The choices are those of llama-quantize (llama.cpp, `src/llama-quant.cpp`).

use waterline_quant::{Format, IQ4_NL, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};

/// The share of a file that gets more bits than its name implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Only embedding and output.
    Plain,
    /// `_S`: small.
    Small,
    /// `_M`: medium.
    Medium,
    /// `_L`: large.
    Large,
}

/// Mixes by their names.
pub const NAMES: [(&str, &Format, Size); 8] = [
    ("q2_k_s", &Q2_K, Size::Small),
    ("q3_k_s", &Q3_K, Size::Small),
    ("q3_k_m", &Q3_K, Size::Medium),
    ("q3_k_l", &Q3_K, Size::Large),
    ("q4_k_s", &Q4_K, Size::Small),
    ("q4_k_m", &Q4_K, Size::Medium),
    ("q5_k_s", &Q5_K, Size::Small),
    ("q5_k_m", &Q5_K, Size::Medium),
];

/// The format of most matrices of a file, and the rule for the others.
#[derive(Clone, Copy)]
pub struct Mix {
    /// The format of most matrices.
    pub format: &'static Format,
    size: Size,
}

/// Facts about the model on which a mix depends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    /// Number of layers.
    pub layers: usize,
    /// Number of experts per layer.
    pub experts: usize,
    /// Number of query heads per key head; 0 if the first layer has no keys.
    pub group: usize,
    /// Whether an importance matrix is used.
    pub is_weighed: bool,
}

/// The role of a tensor, by its name in llama.cpp's files or in this program's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Output,
    Embedding,
    Key,
    Value,
    AttentionOutput,
    Down,
    Other,
}

impl Role {
    fn new(name: &str) -> Self {
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::Embedding,
            _ if has(&[
                "attn_qkv.weight",
                "attn_kv_b.weight",
                "attn_v.weight",
                "v_proj.weight",
            ]) =>
            {
                Role::Value
            }
            _ if has(&["attn_k.weight", "mixer.k_proj.weight"]) => Role::Key,
            _ if has(&["attn_output.weight", "mixer.o_proj.weight"]) => Role::AttentionOutput,
            _ if has(&["ffn_down"]) => Role::Down,
            _ => Role::Other,
        }
    }
}

impl Mix {
    /// Returns the mix called `name`, in any case: a format, or a format with `_s`, `_m` or `_l`.
    ///
    /// # Errors
    /// `name` is neither a format nor a mix.
    pub fn by_name(name: &str) -> Result<Self, String> {
        let lower = name.to_lowercase();
        if let Some((_, format, size)) = NAMES.iter().find(|(known, _, _)| *known == lower) {
            return Ok(Mix {
                format,
                size: *size,
            });
        }
        let format = Format::by_name(name).map_err(|e| e.to_string())?;
        Ok(Mix {
            format,
            size: Size::Plain,
        })
    }

    /// Returns the mix that llama-quantize means by the name: `q4_k` is `q4_k_m`.
    pub fn as_llama_quantize(self) -> Self {
        let is_mixed = [&Q2_K, &Q3_K, &Q4_K, &Q5_K].contains(&self.format);
        let size = match self.size {
            Size::Plain if is_mixed => Size::Medium,
            size => size,
        };
        Mix { size, ..self }
    }

    /// Whether all matrices except embedding and output have one format.
    pub fn is_plain(self) -> bool {
        self.size == Size::Plain
    }

    /// llama.cpp's number for this type of file (`general.file_type`), if there is one.
    pub fn file_type(self) -> Option<u32> {
        let number = match (self.format.name, self.size) {
            ("F32", _) => 0,
            ("F16", _) => 1,
            ("Q4_0", _) => 2,
            ("Q4_1", _) => 3,
            ("Q8_0", _) => 7,
            ("Q5_0", _) => 8,
            ("Q5_1", _) => 9,
            ("Q2_K", Size::Medium) => 10,
            ("Q3_K", Size::Small) => 11,
            ("Q3_K", Size::Medium) => 12,
            ("Q3_K", Size::Large) => 13,
            ("Q4_K", Size::Small) => 14,
            ("Q4_K", Size::Medium) => 15,
            ("Q5_K", Size::Small) => 16,
            ("Q5_K", Size::Medium) => 17,
            ("Q6_K", _) => 18,
            ("Q2_K", Size::Small) => 21,
            ("IQ4_NL", _) => 25,
            ("IQ4_XS", _) => 30,
            ("BF16", _) => 32,
            ("TQ1_0", _) => 36,
            ("TQ2_0", _) => 37,
            ("NVFP4", _) => 39,
            ("Q1_0", _) => 40,
            ("Q2_0", _) => 41,
            _ => return None,
        };
        Some(number)
    }

    /// Returns the formats of the matrices called `names`, which are in the order of layers. Rows of `cols[i]` numbers
    /// may still not be whole blocks.
    pub fn choose(self, names: &[&str], cols: &[usize], facts: Facts) -> Vec<&'static Format> {
        let roles: Vec<Role> = names.iter().map(|name| Role::new(name)).collect();
        let is_tied = !roles.contains(&Role::Output);
        let values = roles.iter().filter(|role| **role == Role::Value).count();
        let (mut value, mut down) = (0, 0);
        let one = |((role, name), cols): ((&Role, &&str), &usize)| match role {
            Role::Embedding if !is_tied => self.format,
            Role::Embedding | Role::Output => self.outermost(*cols),
            Role::Value => {
                value += 1;
                self.value(value - 1, values, facts)
            }
            Role::Down => {
                down += 1;
                // Experts are not in the order of layers.
                let layer = if facts.experts > 1 { layer(name) } else { None };
                self.down(layer.unwrap_or(down - 1), facts)
            }
            Role::Key if facts.experts == 8 => &Q8_0,
            Role::AttentionOutput => self.attention_output(facts),
            Role::Key | Role::Other => self.format,
        };
        roles.iter().zip(names).zip(cols).map(one).collect()
    }

    /// The format of the matrix that computes the logits.
    fn outermost(self, cols: usize) -> &'static Format {
        if !cols.is_multiple_of(self.format.block_len) || self.format == &Q8_0 {
            &Q8_0
        } else {
            &Q6_K
        }
    }

    /// The format of attention's value matrix number `place` of `count`.
    fn value(self, place: usize, count: usize, facts: Facts) -> &'static Format {
        if facts.experts == 8 {
            return &Q8_0;
        }
        let is_shared = facts.group >= 4;
        match (self.format.name, self.size) {
            ("Q2_K", Size::Medium) if is_shared => &Q4_K,
            ("Q2_K", Size::Medium) => &Q3_K,
            ("Q2_K", Size::Small) if is_shared => &Q4_K,
            ("Q3_K", Size::Medium) if place < 2 => &Q5_K,
            ("Q3_K", Size::Medium) => &Q4_K,
            ("Q3_K", Size::Large) => &Q5_K,
            ("IQ4_NL" | "IQ4_XS", _) if is_shared => &Q5_K,
            ("Q4_K" | "Q5_K", Size::Medium) if needs_more_bits(place, count) => &Q6_K,
            ("Q4_K", Size::Small) if place < 4 => &Q5_K,
            _ => self.format,
        }
    }

    /// The format of the feed-forward's last matrix in layer `layer`.
    fn down(self, layer: usize, facts: Facts) -> &'static Format {
        let layers = facts.layers;
        let is_early = layer < layers / 8;
        match (self.format.name, self.size) {
            ("Q2_K", Size::Medium) => &Q3_K,
            ("Q2_K", Size::Small) if is_early => &Q4_K,
            ("Q3_K", Size::Medium) if layer < layers / 16 => &Q5_K,
            ("Q3_K", Size::Medium) => &Q4_K,
            ("Q3_K", Size::Large) => &Q5_K,
            ("Q4_K" | "Q5_K", Size::Medium) if needs_more_bits(layer, layers) => &Q6_K,
            ("IQ4_NL" | "IQ4_XS", _) if is_early && !facts.is_weighed => &Q5_K,
            ("Q4_K", Size::Small) if is_early => &Q5_K,
            ("Q4_0", _) if is_early && facts.is_weighed => &Q4_1,
            ("Q5_0", _) if is_early && facts.is_weighed => &Q5_1,
            _ => self.format,
        }
    }

    fn attention_output(self, facts: Facts) -> &'static Format {
        let is_eight = facts.experts == 8;
        match (self.format.name, self.size) {
            ("Q2_K", Size::Medium) | ("Q3_K" | "Q4_K", Size::Small | Size::Medium) if is_eight => {
                &Q5_K
            }
            ("IQ4_NL" | "IQ4_XS", _) if is_eight => &Q5_K,
            _ if is_eight => self.format,
            ("Q2_K", Size::Medium) => &Q3_K,
            ("Q3_K", Size::Medium) => &Q4_K,
            ("Q3_K", Size::Large) => &Q5_K,
            _ => self.format,
        }
    }
}

/// Whether a layer is in the first or last eighth of the layers, or is every third layer in between.
fn needs_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// Returns 12 for `blk.12.ffn_down_exps.weight`.
fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The format with blocks of 32 that replaces a format whose blocks do not fit into a row.
pub fn of_shorter_blocks(format: &'static Format) -> &'static Format {
    match format.plain().name {
        "IQ4_XS" => &IQ4_NL,
        "Q2_K" | "Q3_K" | "TQ1_0" | "TQ2_0" => &Q4_0,
        "Q4_K" => &Q5_0,
        "Q5_K" => &Q5_1,
        "Q6_K" => &Q8_0,
        _ => format.plain(),
    }
}

/// Whether llama-quantize quantizes a tensor of a file in llama.cpp's layout; it leaves other tensors alone.
pub fn is_quantized(name: &str, shape: &[usize]) -> bool {
    const STAY: &[&str] = &[
        "_norm.weight",
        "ffn_gate_inp.weight",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "ssm_conv1d",
        "shortconv.conv.weight",
        "time_mix_first.weight",
        "time_mix_w0.weight",
        "time_mix_w1.weight",
        "time_mix_w2.weight",
        "time_mix_v0.weight",
        "time_mix_v1.weight",
        "time_mix_v2.weight",
        "time_mix_a0.weight",
        "time_mix_a1.weight",
        "time_mix_a2.weight",
        "time_mix_g1.weight",
        "time_mix_g2.weight",
        "time_mix_decay_w1.weight",
        "time_mix_decay_w2.weight",
        "time_mix_lerp_fused.weight",
        "attn_rel_b.weight",
        "position_embd",
        "token_types",
        "indexer.k_proj.weight",
        "indexer.q_proj.weight",
    ];
    let dimensions = shape.iter().skip_while(|&&size| size == 1).count();
    dimensions >= 2 && name.ends_with("weight") && !STAY.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formats(name: &str, tensors: &[&str], facts: Facts) -> Vec<&'static str> {
        let mix = Mix::by_name(name).unwrap();
        let cols = vec![256; tensors.len()];
        let chosen = mix.choose(tensors, &cols, facts);
        chosen.iter().map(|format| format.name).collect()
    }

    #[test]
    fn medium_gives_every_third_layer_more_bits() {
        let names: Vec<String> = (0..16)
            .map(|layer| format!("blk.{layer}.ffn_down.weight"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let facts = Facts {
            layers: 16,
            ..Facts::default()
        };
        let chosen = formats("Q4_K_M", &names, facts);
        let more: Vec<usize> = (0..16).filter(|&i| chosen[i] == "Q6_K").collect();
        assert_eq!(more, [0, 1, 4, 7, 10, 13, 14, 15]);
        let chosen = formats("q4_k_s", &names, facts);
        assert_eq!(chosen.iter().filter(|name| **name == "Q5_K").count(), 2);
    }

    #[test]
    fn a_tied_embedding_makes_the_logits() {
        let facts = Facts::default();
        assert_eq!(formats("q4_0", &["token_embd.weight"], facts), ["Q6_K"]);
        let untied = ["token_embd.weight", "output.weight"];
        assert_eq!(formats("q4_0", &untied, facts), ["Q4_0", "Q6_K"]);
        assert_eq!(formats("q8_0", &untied, facts), ["Q8_0", "Q8_0"]);
    }

    #[test]
    fn names_are_those_of_llama_quantize() {
        let number = |name: &str| Mix::by_name(name).unwrap().as_llama_quantize().file_type();
        assert_eq!(number("q4_k"), Some(15));
        assert_eq!(number("Q4_K_S"), Some(14));
        assert_eq!(number("q6_k"), Some(18));
        assert!(Mix::by_name("q4_k_xl").is_err());
    }

    #[test]
    fn norms_and_convolutions_stay() {
        assert!(is_quantized("blk.0.ffn_up.weight", &[8, 4]));
        assert!(!is_quantized("blk.0.attn_norm.weight", &[8]));
        assert!(!is_quantized("blk.0.ssm_conv1d.weight", &[8, 4]));
        assert!(!is_quantized("blk.0.ssm_a", &[8, 1]));
        assert!(!is_quantized("blk.0.x.weight", &[1, 8]));
    }
}
