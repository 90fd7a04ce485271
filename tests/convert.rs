//! A model that `convert` writes equals its source.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Workplace, fixture};
use waterline::{Error, Kv, Model, Session, SessionOptions};
use waterline_quant::gguf::Gguf;

/// The number of tokens that [`logits`] reads.
const LENGTH: usize = 48;

/// Returns the bits of the logits after each token.
fn logits(model: Arc<Model>) -> Vec<u32> {
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (64, 64);
    options.state.kv = Kv::F32;
    (options.chunk, options.threads) = (16, 1);
    let vocab = model.spec().vocab;
    let tokens: Vec<u32> = (0..LENGTH).map(|i| (i * 89 % vocab) as u32).collect();
    let mut session = Session::new(model, options).unwrap();
    let mut all = Vec::new();
    session
        .feed_each(&tokens, |_, logits| {
            all.extend(logits.iter().map(|x| x.to_bits()))
        })
        .unwrap();
    all
}

fn cases(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let path = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path();
    let mut cases: Vec<_> = entries.map(path).filter(|path| path.is_dir()).collect();
    cases.sort();
    cases
}

fn has_packed_experts(case: &Path) -> bool {
    let configuration = std::fs::read_to_string(case.join("config.json")).unwrap();
    configuration.contains("\"mxfp4\"")
}

#[test]
fn a_model_gives_the_same_logits_from_its_gguf_file() {
    let place = Workplace::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let inside = cases(&root.join("tests/fixtures"));
    assert!(inside.len() >= 20);
    let mut known_to_others = 0;
    for case in inside
        .iter()
        .chain(&cases(&root.join("../shared/fixtures")))
    {
        let model = match Model::open(case) {
            // The folder next to the repository may hold models of unknown architectures.
            Err(Error::Unsupported { .. }) if !inside.contains(case) => continue,
            model => model.unwrap(),
        };
        let (dir, file) = (case.display().to_string(), place.name("model.gguf"));
        // A product by packed experts rounds its activations: their copy in f32 is another model.
        let mut command = vec!["convert", &dir, "--type", "f32", "-o", &file];
        if has_packed_experts(case) {
            command.extend(["--tensor-type", "exps=mxfp4"]);
        }
        let converted = place.run(command);
        // Files of Raven, SSE and HAX have keys that only their other variants use.
        let of_others = [
            "key rope_theta",
            "key gate_logit_normalizer",
            "key allow_neg_eigval",
            "key data_max_length",
            "key num_hash",
            "keys data_max_length, num_hash",
            "keys num_hash, sparse_keys",
        ]
        .map(|keys| format!("note: nothing reads the {keys}"));
        let is_expected =
            |line: &str| line.starts_with("note: HAX: ") || of_others.iter().any(|n| n == line);
        assert_eq!(converted.status, Some(0), "{}", converted.stderr);
        assert!(
            !inside.contains(case) || converted.stderr.lines().all(is_expected),
            "{}",
            converted.stderr
        );
        let architecture = Gguf::open(&file).unwrap();
        let architecture = architecture.get_str("general.architecture").unwrap();
        known_to_others += usize::from(architecture != "waterline");
        let converted = Model::open(&file).unwrap();
        assert!(
            logits(model) == logits(converted),
            "{dir} as {architecture}"
        );
    }
    assert!(known_to_others >= 1);
}

#[test]
fn mamba_keeps_the_names_that_llama_cpp_has_for_it() {
    let place = Workplace::new();
    let (dir, file) = (fixture("hf_mamba2"), place.name("mamba2.gguf"));
    let dir = dir.display().to_string();
    place
        .run(["convert", &dir, "--type", "f16", "-o", &file])
        .succeeded();
    let gguf = Gguf::open(&file).unwrap();
    assert_eq!(gguf.get_str("general.architecture").unwrap(), "mamba2");
    for (key, value) in [
        ("mamba2.embedding_length", 64),
        ("mamba2.block_count", 2),
        ("mamba2.vocab_size", 256),
        ("mamba2.ssm.conv_kernel", 4),
        ("mamba2.ssm.inner_size", 128),
        ("mamba2.ssm.state_size", 32),
        ("mamba2.ssm.time_step_rank", 8),
        ("mamba2.ssm.group_count", 1),
    ] {
        assert_eq!(gguf.get_usize(key).unwrap(), value, "{key}");
    }
    for (name, shape) in [
        ("token_embd.weight", vec![256, 64]),
        ("blk.1.attn_norm.weight", vec![64]),
        ("blk.1.ssm_in.weight", vec![328, 64]),
        ("blk.1.ssm_conv1d.weight", vec![192, 4]),
        ("blk.1.ssm_conv1d.bias", vec![192]),
        ("blk.1.ssm_dt.bias", vec![8]),
        ("blk.1.ssm_a", vec![8, 1]),
        ("blk.1.ssm_d", vec![8, 1]),
        ("blk.1.ssm_norm.weight", vec![1, 128]),
        ("blk.1.ssm_out.weight", vec![64, 128]),
        ("output_norm.weight", vec![64]),
        ("output.weight", vec![256, 64]),
    ] {
        assert_eq!(gguf.tensor(name).unwrap().shape, shape, "{name}");
    }
    for preset in ["mamba-tiny", "mamba2-tiny"] {
        // A new file, because Windows cannot replace a mapped one.
        let file = place.name(&format!("{preset}.gguf"));
        place
            .run(["synth", preset, "--type", "f16", "-o", &file])
            .succeeded();
        let synthetic = Gguf::open(&file).unwrap();
        let architecture = synthetic.get_str("general.architecture").unwrap();
        assert_eq!(format!("{architecture}-tiny"), preset);
    }
    let rates = gguf.tensor("blk.0.ssm_a").unwrap().to_f32();
    assert!(rates.iter().all(|a| *a < 0.0), "{rates:?}");
}

#[test]
fn files_that_llama_cpp_wrote_give_its_logits() {
    let place = Workplace::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/llama_cpp");
    let recorded = std::fs::read(folder.join("logits.json")).unwrap();
    let recorded: serde_json::Value = serde_json::from_slice(&recorded).unwrap();
    let floats = |row: &serde_json::Value| -> Vec<f32> {
        let numbers = row.as_array().unwrap().iter();
        numbers.map(|x| x.as_f64().unwrap() as f32).collect()
    };
    let tokens: Vec<u32> = floats(&recorded["tokens"])
        .iter()
        .map(|&t| t as u32)
        .collect();
    for name in ["mamba", "mamba2"] {
        let theirs = folder.join(format!("{name}.gguf"));
        let rows = recorded[name].as_array().unwrap().iter();
        let expected: Vec<f32> = rows.flat_map(&floats).collect();
        let mut session = Session::new(Model::open(&theirs).unwrap(), Default::default()).unwrap();
        let mut got = Vec::new();
        session
            .feed_each(&tokens, |_, logits| got.extend_from_slice(logits))
            .unwrap();
        assert_eq!(got.len(), expected.len());
        let differences = got.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let difference = differences.fold(0.0f32, f32::max);
        assert!(difference < 1e-3, "{name}: {difference}");

        // Rewriting such a file gives the same bytes.
        let file = place.name(&format!("{name}.gguf"));
        let input = theirs.display().to_string();
        place
            .run(["quantize", &input, "--type", "f32", "-o", &file])
            .succeeded();
        let (theirs, ours) = (Gguf::open(&theirs).unwrap(), Gguf::open(&file).unwrap());
        for info in theirs.tensors() {
            let (a, b) = (
                theirs.tensor(&info.name).unwrap(),
                ours.tensor(&info.name).unwrap(),
            );
            assert!(
                a.shape == b.shape && a.data[..] == b.data[..],
                "{}",
                info.name
            );
        }
    }
}

#[test]
fn a_transformer_can_be_given_bounded_memory() {
    let place = Workplace::new();
    let dir = fixture("transformer_full").display().to_string();
    let file = place.name("bounded.gguf");
    let convert = |flags: &[&str]| {
        let arguments = ["convert", &dir, "--type", "f32", "-o", &file];
        place.run(arguments.iter().chain(flags))
    };
    let whole = Model::open(fixture("transformer_full")).unwrap();
    let vocab = whole.spec().vocab;
    let expected = logits(whole);
    for policy in ["tova", "stride=3"] {
        convert(&["--retain", policy, "--window", "16", "--retained", "8"]).succeeded();
        let got = logits(Model::open(&file).unwrap());
        assert!(got[..16 * vocab] == expected[..16 * vocab], "{policy}");
        // The retained set still holds all tokens that left the window.
        if policy == "tova" {
            assert!(
                close(&got[..24 * vocab], &expected[..24 * vocab]),
                "{policy}"
            );
        }
        assert!(!close(&got, &expected), "{policy}");
        let bytes = |context| {
            let inspect = ["inspect", &file, "--json", "--context", context];
            let inspected = place.run(inspect).succeeded().json();
            inspected["session"]["layers"].clone()
        };
        assert_eq!(bytes("64"), bytes("4096"), "{policy}");
    }
    // No token ever leaves a window and a set that hold all of them.
    convert(&["--retain", "tova", "--window", "40", "--retained", "8"]).succeeded();
    assert!(close(&logits(Model::open(&file).unwrap()), &expected));

    let status = 2;
    convert(&["--retain", "tova", "--retained", "8"])
        .failed(status, &["transformer_full", "no window"]);
    convert(&["--retain", "tova", "--window", "16", "--retained", "2"])
        .failed(status, &["4 sinks in a set of 2"]);
    let linear = fixture("gdn_plain").display().to_string();
    let flags = ["--retain", "tova", "--window", "16", "--retained", "8"];
    let arguments = ["convert", &linear, "--type", "f32", "-o", &file];
    let outcome = place.run(arguments.iter().chain(&flags));
    outcome.failed(status, &["gdn_plain", "--retain"]);
}

/// Returns whether two lists of logits, as bits, differ only by rounding.
fn close(a: &[u32], b: &[u32]) -> bool {
    let pairs = a.iter().zip(b);
    let differs = |(a, b): (&u32, &u32)| (f32::from_bits(*a) - f32::from_bits(*b)).abs();
    a.len() == b.len() && pairs.map(differs).fold(0.0, f32::max) < 1e-3
}
