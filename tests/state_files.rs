//! State files: the sessions that continue from them, programs that read them, and files that are refused.

mod sealed;
mod synthetic;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use synthetic::state_of;
use waterline::{
    Model, PrefixStore, PrefixStoreOptions, Session, SessionOptions, StateFile, StateWriter,
};

/// Models with each kind of state: recurrent matrices, convolutions, windows, sets, full attention, means of blocks.
const CASES: [&str; 8] = [
    "hax_mamba_argmax_ks_stream",
    "gdn_swa",
    "hf_qwen3_5_moe_fused",
    "lalte_stream_gqa",
    "lansa",
    "mom_k2",
    "transformer_full",
    "moba",
];
const TOKENS: usize = 75;
const SEGMENT: usize = 20;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn models() -> Vec<(&'static str, Arc<Model>)> {
    let open = |case: &'static str| {
        let path = root().join("tests/fixtures").join(case);
        path.exists()
            .then(|| (case, Model::open(&path).expect("a fixture opens")))
    };
    let found: Vec<_> = CASES.into_iter().filter_map(open).collect();
    assert!(found.len() > 6);
    found
}

fn session(model: &Arc<Model>, context: usize, exact: bool) -> Session {
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (context, 40);
    (options.chunk, options.threads, options.exact) = (8, 1, exact);
    options.sampler.seed = 1;
    Session::new(Arc::clone(model), options).expect("a session")
}

fn text(model: &Model) -> Vec<u32> {
    let vocab = model.spec().vocab;
    let token = |i| ((i * i + 3 * i / 7) % vocab) as u32;
    (0..TOKENS).map(token).collect()
}

/// Writes the state file of a text.
fn write(session: &mut Session, path: &Path, tokens: &[u32]) {
    let description = session.describe().expect("a description");
    let (mut writer, found) = StateWriter::begin(path, &description).expect("a file");
    assert!(found.is_none());
    session
        .read_into(&mut writer, tokens, SEGMENT, |_| ())
        .expect("tokens");
    writer.finish().expect("a file");
}

fn file(model: &Arc<Model>, folder: &Path, exact: bool) -> PathBuf {
    let path = folder.join("book.state");
    write(&mut session(model, 100, exact), &path, &text(model));
    path
}

#[test]
fn a_session_continues_from_every_checkpoint_bit_by_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    for (case, model) in models() {
        for exact in [false, true] {
            let tokens = text(&model);
            let path = file(&model, folder.path(), exact);
            let book = StateFile::open(&path).expect("a state file");
            assert_eq!(book.tokens(), tokens);
            book.verify().expect("sound");
            let positions: Vec<u64> = book.records().map(|record| record.position).collect();
            assert_eq!(positions, [20, 40, 60, 75]);
            // Another context may be longer than the writer's, and what the session has read before leaves no trace.
            let mut again = session(&model, 130, exact);
            for (index, &position) in positions.iter().enumerate() {
                again.feed(&[1, 2, 3]).expect("tokens");
                again.open_state(&book, index).expect("a checkpoint");
                assert_eq!(again.position(), position);
                let mut plain = session(&model, 130, exact);
                for segment in tokens[..position as usize].chunks(SEGMENT) {
                    plain.feed(segment).expect("tokens");
                }
                assert!(state_of(&again) == state_of(&plain), "{case} {position}");
                for session in [&mut again, &mut plain] {
                    session.feed(&[4, 2, 1, 3, 5]).expect("tokens");
                }
                assert!(state_of(&again) == state_of(&plain), "{case} {position}");
                again.check_segment(&book, index).expect("equal bits");
            }
        }
    }
}

/// A program that has only the format's page finds the bits that the session has.
#[test]
fn the_reference_reader_extracts_every_tensor() {
    let python = std::env::var("WATERLINE_PYTHON").unwrap_or("python3".into());
    let folder = tempfile::tempdir().expect("a folder");
    let reader = root().join("tools/reference/state_file.py");
    for (case, model) in models() {
        let path = file(&model, folder.path(), false);
        let book = StateFile::open(&path).expect("a state file");
        let run = |arguments: &[&str]| {
            let mut command = Command::new(&python);
            let command = command.arg(&reader).arg(&path).args(arguments);
            command.output().expect("Python runs")
        };
        let listed = String::from_utf8(run(&[]).stdout).expect("text");
        for record in book.records() {
            let hash: String = record
                .tokens_hash
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            assert!(listed.contains(&hash), "{case}: {listed}");
        }
        for index in [1, 3] {
            let mut session = session(&model, 100, false);
            session.open_state(&book, index).expect("a checkpoint");
            let (position, snapshot) = (session.position(), session.snapshot().expect("a state"));
            for (entry, (tensor, bytes)) in book
                .description()
                .tensors
                .iter()
                .zip(snapshot.tensors())
                .skip(3)
            {
                let (layer, index) = (tensor.layer.map(|it| it.to_string()), index.to_string());
                let mut arguments = vec![&*tensor.name, "--record", &index];
                arguments.extend(layer.iter().flat_map(|layer| ["--layer", layer]));
                let found = run(&arguments);
                assert!(found.status.success(), "{case} {}: {found:?}", tensor.name);
                let expected = match entry.rows {
                    None => bytes.to_vec(),
                    Some(rows) => {
                        let parts: usize = tensor.shape[..rows.dimension].iter().product();
                        let length = bytes.len() / parts;
                        let row = length / tensor.shape[rows.dimension];
                        let used = (position as usize).div_ceil(rows.tokens);
                        let used = row * used.min(tensor.shape[rows.dimension]);
                        let parts = bytes.chunks(length);
                        parts.flat_map(|part| &part[..used]).copied().collect()
                    }
                };
                assert!(found.stdout == expected, "{case} {}", tensor.name);
            }
        }
    }
}

#[test]
fn a_run_continues_what_a_killed_one_has_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, model) = models().swap_remove(6);
    let tokens = text(&model);
    let path = file(&model, folder.path(), false);
    let whole = std::fs::read(&path).expect("a file");
    let partial = folder.path().join("book.state.partial");
    let mut reused = 0;
    for cut in (0..=whole.len()).step_by(whole.len() / 37) {
        let mut torn = whole[..cut].to_vec();
        // A system that lost power may leave zeros at the end.
        torn.resize(cut + cut % 3 * 40, 0);
        std::fs::write(&partial, torn).expect("written");
        let mut session = session(&model, 100, false);
        let description = session.describe().expect("a description");
        let begun = StateWriter::begin(&path, &description);
        let (mut writer, found) = begun.unwrap_or_else(|error| panic!("{cut}: {error}"));
        let second = StateWriter::begin(&path, &description).map(|_| ());
        assert!(second.is_err_and(|it| it.to_string().contains("another process")));
        if let Some(found) = found {
            reused += 1;
            assert!(tokens.starts_with(found.tokens()));
            let last = found.records().len() - 1;
            session.open_state(&found, last).expect("a checkpoint");
        }
        session
            .read_into(&mut writer, &tokens, SEGMENT, |_| ())
            .expect("tokens");
        writer.finish().expect("a file");
        assert!(std::fs::read(&path).expect("a file") == whole, "{cut}");
        assert!(!partial.exists());
    }
    assert!(reused > 20, "{reused}");
    // Another model's, and a link.
    let (_, other) = models().swap_remove(1);
    file(&other, folder.path(), false);
    std::fs::rename(&path, &partial).expect("renamed");
    let description = session(&model, 100, false)
        .describe()
        .expect("a description");
    let refused = |part: &str| {
        let error = StateWriter::begin(&path, &description)
            .map(|_| ())
            .expect_err("refused");
        assert!(error.to_string().contains(part), "{error}");
    };
    refused("another model");
    #[cfg(unix)]
    {
        std::fs::remove_file(&partial).expect("removed");
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "mine").expect("written");
        std::os::unix::fs::symlink(&victim, &partial).expect("a link");
        refused("link");
        assert_eq!(std::fs::read(&victim).expect("a file"), b"mine");
    }
}

/// Every byte counts: a file with a changed one is refused when it is opened, verified or continued from.
#[test]
fn changed_files_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, model) = models().swap_remove(6);
    let path = file(&model, folder.path(), false);
    let whole = std::fs::read(&path).expect("a file");
    let changed = folder.path().join("changed.state");
    let outcome = |bytes: &[u8]| {
        std::fs::write(&changed, bytes).expect("written");
        StateFile::open(&changed).and_then(|file| file.verify())
    };
    outcome(&whole).expect("a sound file");
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        bytes[random.usize(..whole.len())] ^= 1 << random.u8(..8);
        assert!(outcome(&bytes).is_err());
    }
    for cut in (0..whole.len()).step_by(97) {
        let error = outcome(&whole[..cut]).expect_err("cut");
        assert!(error.to_string().contains("changed.state"), "{error}");
    }
    assert!(outcome(&[&whole[..], &[0; 64]].concat()).is_err());
    let heads: Vec<usize> = (0..whole.len())
        .step_by(64)
        .filter(|&at| whole[at..].starts_with(b"WLRECORD"))
        .collect();
    assert_eq!(heads.len(), 4);
    // Records that are swapped, left out or repeated break the chain; a file that ends with a record other than the last is not complete.
    let part = |index: usize| {
        let end = heads.get(index + 1).copied().unwrap_or(whole.len());
        &whole[heads[index]..end]
    };
    let header = &whole[..heads[0]];
    for order in [
        &[0, 2, 1, 3][..],
        &[0, 1, 3],
        &[0, 1, 1, 2, 3],
        &[1, 2, 3],
        &[0, 1],
        &[],
    ] {
        let parts: Vec<&[u8]> = order.iter().map(|&index| part(index)).collect();
        assert!(
            outcome(&[header, &parts.concat()].concat()).is_err(),
            "{order:?}"
        );
    }
}

/// A file whose hashes are right but whose states are not of its text opens, and fails the check of that segment.
#[test]
fn a_forged_state_fails_the_check_of_its_segment() {
    let folder = tempfile::tempdir().expect("a folder");
    for (case, model) in models() {
        let tokens = text(&model);
        let path = folder.path().join("forged.state");
        // The states are of other tokens from the second segment on.
        let mut others = tokens.clone();
        others[SEGMENT + 3] = (others[SEGMENT + 3] + 1) % model.spec().vocab as u32;
        write(&mut session(&model, 100, false), &path, &others);
        let mut bytes = std::fs::read(&path).expect("a file");
        let [head, ..] = sealed::records(&bytes)[1];
        bytes[head + 256 + 12..][..4].copy_from_slice(&tokens[SEGMENT + 3].to_le_bytes());
        sealed::seal(&mut bytes);
        std::fs::write(&path, bytes).expect("written");
        let book = StateFile::open(&path).expect("a file with right hashes");
        book.verify().expect("right hashes");
        assert_eq!(book.tokens(), tokens);
        let mut checker = session(&model, 100, false);
        checker.check_segment(&book, 0).expect("a true segment");
        let error = checker
            .check_segment(&book, 1)
            .expect_err("a forged one")
            .to_string();
        assert!(
            error.contains("segment 1, tokens 20 to 40"),
            "{case}: {error}"
        );
        // The third segment follows from the forged checkpoint.
        checker.check_segment(&book, 2).expect("a true segment");
    }
}

/// Numbers and values that no state has are refused although all hashes are right, and the session then reads on.
#[test]
fn forged_numbers_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, model) = models().swap_remove(6);
    let path = file(&model, folder.path(), false);
    let whole = std::fs::read(&path).expect("a file");
    let heads: Vec<usize> = sealed::records(&whole).iter().map(|ends| ends[0]).collect();
    let mut session = session(&model, 100, false);
    for head in heads {
        for field in (8..96).step_by(8) {
            // Grid, hash and sampler may be any numbers.
            if (24..56).contains(&field) {
                continue;
            }
            for number in [0, 1, 19, 64, 1 << 20, 1 << 40, u64::MAX / 8, u64::MAX] {
                let mut bytes = whole.clone();
                bytes[head + field..][..8].copy_from_slice(&number.to_le_bytes());
                sealed::seal(&mut bytes);
                if bytes == whole {
                    continue;
                }
                std::fs::write(&path, bytes).expect("written");
                let opened = StateFile::open(&path);
                let opened =
                    opened.and_then(|book| session.open_state(&book, book.records().len() - 1));
                assert!(opened.is_err(), "{head}: {field}: {number}");
                session.reset().expect("an empty state");
                session.feed(&[1, 2, 3]).expect("tokens");
            }
        }
    }
    let sections = sealed::records(&whole)[1];
    for at in [sections[1], sections[2], sections[3]] {
        let mut bytes = whole.clone();
        bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        bytes[at + 2..at + 4].copy_from_slice(&[0xff, 0x7f]);
        sealed::seal(&mut bytes);
        std::fs::write(&path, bytes).expect("written");
        let book = StateFile::open(&path).expect("a file with right hashes");
        let error = session.open_state(&book, 1).map(|()| at);
        assert!(error.is_err_and(|it| it.to_string().contains("not finite")));
    }
    let (_, other) = models().swap_remove(1);
    file(&other, folder.path(), false);
    let book = StateFile::open(&path).expect("a state file");
    let error = session
        .open_state(&book, 0)
        .expect_err("another model")
        .to_string();
    assert!(error.contains("another model"), "{error}");
}

/// A store passes over a file whose hashes are right but whose state cannot be one, and the history is read.
#[test]
fn a_store_passes_over_a_state_that_is_not_sound() {
    let folder = tempfile::tempdir().expect("a folder");
    for (case, model) in models() {
        let path = file(&model, folder.path(), false);
        let mut bytes = std::fs::read(&path).expect("a file");
        let [_, rows, .., logits, _] = *sealed::records(&bytes).last().expect("a record");
        bytes[rows..logits].fill(0xff);
        sealed::seal(&mut bytes);
        std::fs::write(&path, bytes).expect("written");
        let store = PrefixStore::new(PrefixStoreOptions::default()).expect("a store");
        let mut options = SessionOptions::default();
        (options.state.context, options.state.history) = (100, 40);
        (options.chunk, options.threads) = (8, 1);
        options.store = Some(Arc::clone(&store));
        let mut session = Session::new(Arc::clone(&model), options).expect("a session");
        let book = StateFile::open(&path).expect("a file with right hashes");
        session.offer_state(Arc::new(book)).expect("this model's");
        let longer = [text(&model), vec![1, 2]].concat();
        let read = session.read_history(&longer).expect("tokens");
        assert_eq!(read.reused, 0, "{case}");
        let notes = store.take_notes();
        assert!(
            notes.iter().any(|note| note.contains("ignored")),
            "{case}: {notes:?}"
        );
    }
}

/// A file that is shortened after it was opened is an error, not the end of the process.
#[test]
fn a_file_may_be_shortened_while_it_is_open() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, model) = models().swap_remove(6);
    let path = file(&model, folder.path(), false);
    let book = StateFile::open(&path).expect("a state file");
    let opened = std::fs::File::options().write(true).open(&path);
    opened
        .and_then(|file| file.set_len(5000))
        .expect("shortened");
    assert!(book.verify().is_err());
    let mut session = session(&model, 100, false);
    let error = session
        .open_state(&book, 3)
        .expect_err("shortened")
        .to_string();
    assert!(error.contains("ends too early"), "{error}");
    assert_eq!(session.position(), 0);
}
