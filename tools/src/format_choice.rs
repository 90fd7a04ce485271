//! The choice of a number format for each tensor of an output file.

use waterline::internal::{Precision, WeightSpec};
use waterline_quant::{BF16, F16, F32, FORMATS, Format, Q4_0, Q4_K, Q5_K, Q6_K};

use crate::error::Error;
use crate::mix::{self, Facts, Mix, of_shorter_blocks};

/// Options for the formats of an output file.
#[derive(clap::Args, Clone)]
pub struct FormatArgs {
    #[arg(long = "type", value_name = "T", value_parser = Mix::by_name, help = types(), long_help = types() + DETAILS)]
    mix: Mix,
    /// Number format of the embedding and output matrices. By default q6_k if --type is q4_0, q4_k, q5_k or a mix, else --type.
    #[arg(long, value_name = "T", value_parser = Format::by_name)]
    embedding_type: Option<&'static Format>,
    /// Number format of matrices whose name contains PART; the last match wins. May be repeated.
    #[arg(long, value_name = "PART=T", value_parser = parse_rule)]
    tensor_type: Vec<Rule>,
}

/// Help text for `--type`.
fn types() -> String {
    let formats = FORMATS.iter().filter(|format| format.has_encoder());
    let formats: Vec<String> = formats.map(|format| format.name.to_lowercase()).collect();
    let formats = formats.join(", ");
    let mixes = mix::NAMES.map(|(name, _, _)| name).join(", ");
    format!(
        "Number format of the matrices: {formats}; q4_0x16 for CPUs with AVX-512; or a mix by llama.cpp's name: {mixes}"
    )
}

const DETAILS: &str = ".

q4_0x16 has the numbers of q4_0 in another order, which no other program reads. It suits rows of a multiple of 512 numbers, others stay q4_0. \
Norms, gates, decays, convolutions and routers stay f32 (a --tensor-type may make them f16 or bf16, no less). A matrix whose rows are not a \
whole number of blocks falls back as in llama-quantize: q4_k to q5_0, q5_k to q5_1, q6_k to q8_0, q3_k and q2_k to q4_0, all others to f16.";

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

/// The format of a tensor.
#[derive(Clone, Copy)]
pub struct Choice {
    /// The requested format.
    pub wanted: &'static Format,
    /// The stored format, which differs if the rows are not a whole number of blocks.
    pub stored: &'static Format,
}

/// The kind of file for which formats are chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Files with this program's tensor names.
    Own,
    /// llama.cpp's files, for which a type name means what it means to llama-quantize.
    LlamaCpp,
}

impl FormatArgs {
    /// Chooses the formats of all weights of a file.
    ///
    /// # Errors
    /// A --tensor-type matches no weight.
    pub fn choose(
        &self,
        weights: &[&WeightSpec],
        facts: Facts,
        layout: Layout,
    ) -> Result<Vec<Choice>, Error> {
        let unused = |rule: &&Rule| {
            !weights
                .iter()
                .any(|weight| weight.name.contains(&rule.part))
        };
        if let Some(rule) = self.tensor_type.iter().find(unused) {
            return Err(Error::usage(format!(
                "--tensor-type {}: no tensor has this in its name",
                rule.part
            )));
        }
        let mix = self.mix_for(layout);
        let matrices: Vec<&&WeightSpec> = weights.iter().filter(is_matrix).collect();
        let names: Vec<&str> = matrices.iter().map(|weight| weight.name.as_str()).collect();
        let cols: Vec<usize> = matrices.iter().map(|weight| columns(weight)).collect();
        let is_mixed = !mix.is_plain() || layout == Layout::LlamaCpp && mix.format.block_len > 1;
        let mixed = if is_mixed {
            mix.choose(&names, &cols, facts)
        } else {
            names.iter().map(|name| plain(mix.format, name)).collect()
        };
        let mut mixed = mixed.into_iter();
        let choices = weights.iter().map(|weight| {
            let usual = if is_matrix(&weight) {
                mixed.next()
            } else {
                None
            };
            let wanted = self.wanted(weight, usual);
            let stored = fitting(wanted, columns(weight));
            Choice { wanted, stored }
        });
        Ok(choices.collect())
    }

    /// llama.cpp's file type number for this type.
    pub fn file_type(&self) -> Option<u32> {
        self.mix_for(Layout::LlamaCpp).file_type()
    }

    fn mix_for(&self, layout: Layout) -> Mix {
        match layout {
            Layout::Own => self.mix,
            Layout::LlamaCpp => self.mix.as_llama_quantize(),
        }
    }

    /// Returns the requested format of a weight; `usual` is the mix's choice for a matrix.
    fn wanted(&self, weight: &WeightSpec, usual: Option<&'static Format>) -> &'static Format {
        let named = |rule: &&Rule| weight.name.contains(&rule.part);
        let rule = self.tensor_type.iter().rfind(named).map(|rule| rule.format);
        let Some(usual) = usual else {
            return rule
                .filter(|&format| format == &F16 || format == &BF16)
                .unwrap_or(&F32);
        };
        let outermost = OUTERMOST.contains(&weight.name.as_str());
        let embedding = self.embedding_type.filter(|_| outermost);
        rule.or(embedding).unwrap_or(usual)
    }
}

/// Every token passes through these two matrices, which are a small part of a large model.
const OUTERMOST: [&str; 2] = ["token_embd.weight", "output.weight"];

fn is_matrix(weight: &&&WeightSpec) -> bool {
    weight.precision == Precision::Quantized
}

fn columns(weight: &WeightSpec) -> usize {
    weight.shape.last().copied().unwrap_or(1)
}

/// Returns the format of a matrix in a file with a single format.
fn plain(format: &'static Format, name: &str) -> &'static Format {
    let precise = [&Q4_0, &Q4_K, &Q5_K].contains(&format.plain());
    if precise && OUTERMOST.contains(&name) {
        &Q6_K
    } else {
        format
    }
}

/// Returns `wanted`, or the format that replaces it for rows of `cols` numbers.
fn fitting(wanted: &'static Format, cols: usize) -> &'static Format {
    let fits = |format: &&'static Format| cols.is_multiple_of(format.block_len);
    let candidates = [wanted, wanted.plain(), of_shorter_blocks(wanted), &F16];
    candidates.into_iter().find(fits).unwrap_or(&F16)
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
        let cli = Cli::try_parse_from(flags).unwrap();
        let choices = cli
            .formats
            .choose(&[&weight], Facts::default(), Layout::Own);
        choices.unwrap()[0].stored.name
    }

    #[test]
    fn rows_that_are_not_whole_blocks_fall_back() {
        let matrix = |cols| matrix("blk.0.ffn_up.weight", cols);
        assert_eq!(choose(&["--type", "q4_k"], matrix(512)), "Q4_K");
        assert_eq!(choose(&["--type", "q4_k"], matrix(96)), "Q5_0");
        assert_eq!(choose(&["--type", "q6_k"], matrix(96)), "Q8_0");
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
        let cli = Cli::try_parse_from(["test", "--type", "q4_0", "--tensor-type", "up=f16"]);
        let formats = cli.unwrap().formats;
        let refused = formats.choose(&[&down()], Facts::default(), Layout::Own);
        assert!(
            refused
                .err()
                .unwrap()
                .to_string()
                .contains("--tensor-type up")
        );
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
