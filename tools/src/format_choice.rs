//! Which number format each tensor of an output file gets.

use waterline::internal::{Precision, WeightSpec};
use waterline_quant::{BF16, F16, F32, Format, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};

/// The formats of an output file.
#[derive(clap::Args, Clone)]
pub struct FormatArgs {
    /// Number format of the matrices: f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, iq4_nl, iq4_xs, mxfp4, q3_k or q2_k; q4_0x16 for CPUs with AVX-512.
    ///
    /// q4_0x16 stores the values of q4_0 in another order, which no other program reads. It applies to rows of a multiple of 512 values, others stay q4_0. Norms, gates,
    /// decays, convolutions and routers stay f32 (a --tensor-type may make them f16 or bf16, no less). A matrix whose rows are not a whole number of blocks falls back to
    /// q8_0 or f16.
    #[arg(long = "type", value_name = "T", value_parser = Format::by_name)]
    format: &'static Format,
    /// Number format of the embedding and output matrices; q6_k if --type is q4_0, q4_k or q5_k, else as --type.
    #[arg(long, value_name = "T", value_parser = Format::by_name)]
    embedding_type: Option<&'static Format>,
    /// Number format of the matrices whose name contains PART; the last match decides. May be repeated.
    #[arg(long, value_name = "PART=T", value_parser = parse_rule)]
    tensor_type: Vec<Rule>,
}

#[derive(Clone)]
struct Rule {
    part: String,
    format: &'static Format,
}

fn parse_rule(text: &str) -> Result<Rule, String> {
    let (part, name) = text
        .rsplit_once('=')
        .ok_or("expected PART=T, such as ffn_down=q6_k")?;
    Ok(Rule {
        part: part.into(),
        format: Format::by_name(name).map_err(|e| e.to_string())?,
    })
}

impl FormatArgs {
    /// The wanted format of `weight`, and the actual one: another format if its rows are not whole blocks.
    pub fn choose(&self, weight: &WeightSpec) -> (&'static Format, &'static Format) {
        let wanted = self.wanted(weight);
        let cols = weight.shape.last().copied().unwrap_or(1);
        let fits = |format: &&'static Format| cols.is_multiple_of(format.block_len);
        let fitting = [wanted, wanted.plain(), &Q8_0, &F16]
            .into_iter()
            .find(fits)
            .unwrap_or(&F16);
        (wanted, fitting)
    }

    fn wanted(&self, weight: &WeightSpec) -> &'static Format {
        let named = |rule: &&Rule| weight.name.contains(&rule.part);
        let rule = self.tensor_type.iter().rfind(named).map(|rule| rule.format);
        if weight.precision == Precision::Full {
            return rule
                .filter(|&format| format == &F16 || format == &BF16)
                .unwrap_or(&F32);
        }
        if let Some(format) = rule {
            return format;
        }
        if !["token_embd.weight", "output.weight"].contains(&weight.name.as_str()) {
            return self.format;
        }
        // Every token passes through these two, and they are a small part of a large model.
        let precise = [&Q4_0, &Q4_K, &Q5_K].contains(&self.format.plain());
        self.embedding_type
            .unwrap_or(if precise { &Q6_K } else { self.format })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        formats: FormatArgs,
    }

    fn matrix(name: &str, cols: usize) -> WeightSpec {
        WeightSpec {
            name: name.into(),
            shape: vec![8, cols],
            precision: Precision::Quantized,
        }
    }

    fn choose(flags: &[&str], weight: WeightSpec) -> &'static str {
        let flags = ["test"].iter().chain(flags);
        Cli::try_parse_from(flags)
            .map(|cli| cli.formats.choose(&weight).1.name)
            .unwrap()
    }

    #[test]
    fn rows_that_are_not_whole_blocks_fall_back() {
        let matrix = |cols| matrix("blk.0.ffn_up.weight", cols);
        assert_eq!(choose(&["--type", "q4_k"], matrix(512)), "Q4_K");
        assert_eq!(choose(&["--type", "q4_k"], matrix(96)), "Q8_0");
        assert_eq!(choose(&["--type", "q4_k"], matrix(40)), "F16");
        assert_eq!(choose(&["--type", "q4_0"], matrix(40)), "F16");
        assert_eq!(choose(&["--type", "q4_0x16"], matrix(1024)), "Q4_0x16");
        assert_eq!(choose(&["--type", "q4_0x16"], matrix(768)), "Q4_0");
    }

    #[test]
    fn embeddings_and_rules_go_before_the_type() {
        let embedding = || matrix("token_embd.weight", 256);
        assert_eq!(choose(&["--type", "q4_0"], embedding()), "Q6_K");
        assert_eq!(choose(&["--type", "q8_0"], embedding()), "Q8_0");
        assert_eq!(
            choose(&["--type", "q4_0", "--embedding-type", "f16"], embedding()),
            "F16"
        );
        let down = || matrix("blk.3.ffn_down.weight", 256);
        let rules = [
            "--type",
            "q4_0",
            "--tensor-type",
            "ffn=q8_0",
            "--tensor-type",
            "ffn_down=bf16",
        ];
        assert_eq!(choose(&rules, down()), "BF16");
    }

    #[test]
    fn full_precision_is_never_quantized() {
        let norm = || WeightSpec {
            name: "blk.0.attn_norm.weight".into(),
            shape: vec![256],
            precision: Precision::Full,
        };
        let flags = |rule| ["--type", "q4_0", "--tensor-type", rule];
        assert_eq!(choose(&flags("norm=q4_0"), norm()), "F32");
        assert_eq!(choose(&flags("norm=f16"), norm()), "F16");
    }
}
