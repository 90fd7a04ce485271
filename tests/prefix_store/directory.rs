//! A store's directory: shared by processes, limited, damaged, forged, deleted, or left by a process that was killed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use waterline::internal::seal_checkpoint;
use waterline::{Model, PrefixStore, PrefixStoreOptions};

use super::{Random, models, session, state, store};

/// The files of the checkpoints in a store's directory.
pub fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| !path.ends_with("key")).collect()
}

/// Opens a small hybrid of recurrent layers and attention.
pub fn hybrid() -> Arc<Model> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/hf_qwen3_5_moe_fused"
    );
    Model::open(path).expect("a fixture opens")
}

/// Reads a history; returns the number of tokens read, and checks that the state equals that of a fresh session with the same grid.
pub fn reads(model: &Arc<Model>, shared: &Arc<PrefixStore>, tokens: &[u32]) -> usize {
    let mut one = session(model, &None, Some(shared));
    let read = one.read_history(tokens).expect("a history").read;
    let mut fresh = session(model, &None, Some(&store(usize::MAX, shared.grid(), None)));
    fresh.read_history(tokens).expect("a history");
    assert!(one.grid() != fresh.grid() || state(&one) == state(&fresh));
    assert!(one.logits().expect("logits").iter().all(|x| x.is_finite()));
    read
}

#[test]
fn processes_share_a_directory_and_files_are_their_owners() {
    let (model, folder) = (hybrid(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("deep/er");
    let (one, other) = (
        store(1 << 24, 16, Some(&path)),
        store(1 << 24, 16, Some(&path)),
    );
    let tokens = Random(3).tokens(100, model.spec().vocab);
    assert_eq!(reads(&model, &one, &tokens), 100);
    one.flush();
    assert_eq!(reads(&model, &other, &tokens), 0);
    let longer = [&tokens[..], &[1, 2, 3]].concat();
    assert_eq!(reads(&model, &other, &longer), 3);
    other.flush();
    assert_eq!(reads(&model, &one, &longer), 0);
    assert!(one.stats().files == 2 && one.stats().file_bytes > 0);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode =
            |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(
            (mode(&path), mode(path.parent().expect("above"))),
            (0o700, 0o700)
        );
        for entry in std::fs::read_dir(&path).expect("the directory") {
            assert_eq!(mode(&entry.expect("an entry").path()), 0o600);
        }
    }
    // Another model's checkpoints are skipped without a note.
    let foreign = models()
        .into_iter()
        .find(|(name, _)| name == "gdn_plain")
        .expect("a fixture")
        .1;
    assert_eq!(reads(&foreign, &one, &[1, 2, 3, 4]), 4);
    one.clear();
    assert_eq!((one.stats().files, one.stats().checkpoints), (0, 0));
    let fresh = store(1 << 24, 16, Some(&path));
    assert_eq!(reads(&model, &fresh, &longer), 103);
    for store in [one, other, fresh] {
        assert_eq!(store.take_notes(), [""; 0]);
    }
}

#[test]
fn a_directory_keeps_its_bound_and_can_vanish() {
    let (model, folder) = (hybrid(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("store");
    let mut options = PrefixStoreOptions::default();
    (options.grid, options.directory) = (16, Some(path.clone()));
    let probe = PrefixStore::new(options.clone()).expect("a store");
    let vocab = model.spec().vocab;
    reads(&model, &probe, &Random(1).tokens(60, vocab));
    probe.flush();
    let one_file = probe.stats().file_bytes;
    probe.clear();
    drop(probe);
    options.directory_bytes = 3 * one_file + one_file / 2;
    let bounded = PrefixStore::new(options.clone()).expect("a store");
    for seed in 0..12 {
        reads(&model, &bounded, &Random(seed).tokens(60, vocab));
        bounded.flush();
        let listed = std::fs::read_dir(&path).expect("the directory");
        let bytes: u64 = listed
            .map(|entry| entry.expect("an entry"))
            .filter(|entry| entry.file_name() != "key")
            .map(|entry| entry.metadata().expect("there").len())
            .sum();
        assert!(bytes <= options.directory_bytes && bytes == bounded.stats().file_bytes);
    }
    assert_eq!(bounded.stats().files, 3);
    // The last checkpoints exist.
    drop(bounded);
    let again = PrefixStore::new(options.clone()).expect("a store");
    assert_eq!(reads(&model, &again, &Random(11).tokens(60, vocab)), 0);
    // If the folder is deleted, or the disk is full, only the file is lost.
    std::fs::remove_dir_all(&path).expect("removed");
    let tokens = Random(20).tokens(60, vocab);
    assert_eq!(reads(&model, &again, &tokens), 60);
    again.flush();
    assert!(
        again
            .take_notes()
            .iter()
            .any(|note| note.contains("cannot be written"))
    );
    assert_eq!(reads(&model, &again, &tokens), 0);
    // No checkpoint fits: nothing is stored, without an error.
    options.directory_bytes = 10;
    let none = PrefixStore::new(options).expect("a store");
    reads(&model, &none, &tokens);
    none.flush();
    assert_eq!(none.stats().files, 0);
    let notes = none.take_notes();
    let is_told = notes.iter().any(|note| note.contains("leaves no room"));
    assert!(is_told, "{notes:?}");
}

/// Two processes write equal and different histories to one directory, whose limit makes each remove the other's files.
#[test]
fn two_processes_write_one_directory() {
    const CHILD: &str = "WATERLINE_STORE_OTHER";
    let model = hybrid();
    let vocab = model.spec().vocab;
    let mut options = PrefixStoreOptions::default();
    (options.grid, options.directory_bytes) = (16, 400 << 10);
    if let Some(path) = std::env::var_os(CHILD) {
        options.directory = Some(path.into());
        let mut random = Random(u64::from(std::process::id()));
        for _ in 0..12 {
            // A new store has no checkpoints in memory, so everything it reuses comes from the directory.
            let shared = PrefixStore::new(options.clone()).expect("a store");
            for _ in 0..4 {
                let tokens = Random(random.below(5) as u64).tokens(40 + random.below(90), vocab);
                reads(&model, &shared, &tokens);
            }
            shared.flush();
            assert_eq!(shared.take_notes(), [""; 0]);
            println!("reused {}", shared.stats().reused_tokens);
        }
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let children = [(); 2].map(|()| {
        let program = std::env::current_exe().expect("this program");
        let mut child = std::process::Command::new(program);
        child
            .args(["--exact", "--nocapture"])
            .arg("directory::two_processes_write_one_directory")
            .env(CHILD, folder.path())
            .stdout(std::process::Stdio::piped());
        child.spawn().expect("a child")
    });
    let mut reused = 0;
    for child in children {
        let output = child.wait_with_output().expect("ended");
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).expect("text");
        let counts = said.lines().filter_map(|line| line.strip_prefix("reused "));
        reused += counts
            .filter_map(|count| count.parse::<u64>().ok())
            .sum::<u64>();
    }
    assert!(reused > 0);
    let files = std::fs::read_dir(folder.path()).expect("the directory");
    let files = files.map(|entry| entry.expect("an entry").metadata().expect("there").len());
    let (count, bytes) = files.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
    // Two files written at the same moment may exceed the limit by one file.
    let most = options.directory_bytes + bytes / count;
    assert!(bytes <= most, "{bytes} bytes in {count} files");
}

#[test]
fn a_killed_process_leaves_nothing_wrong() {
    const CHILD: &str = "WATERLINE_STORE_CHILD";
    let model = hybrid();
    let vocab = model.spec().vocab;
    if let Some(path) = std::env::var_os(CHILD) {
        let shared = store(1 << 24, 16, Some(Path::new(&path)));
        for seed in 0.. {
            reads(
                &model,
                &shared,
                &Random(seed % 7).tokens(40 + seed as usize % 90, vocab),
            );
        }
    }
    let (folder, mut random) = (tempfile::tempdir().expect("a folder"), Random(5));
    let mut found = 0;
    for _ in 0..6 {
        let program = std::env::current_exe().expect("this program");
        let mut child = std::process::Command::new(program)
            .args([
                "--exact",
                "directory::a_killed_process_leaves_nothing_wrong",
            ])
            .env(CHILD, folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("a child");
        // Waits until the child has written something, and a little longer.
        for _ in 0..600 {
            let names = std::fs::read_dir(folder.path()).expect("the directory");
            if names.count() > 3 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        std::thread::sleep(std::time::Duration::from_millis(random.below(150) as u64));
        child.kill().expect("killed");
        child.wait().expect("ended");
        let shared = store(1 << 24, 16, Some(folder.path()));
        assert_eq!(shared.take_notes(), [""; 0]);
        for seed in 0..7 {
            let tokens = Random(seed).tokens(129, vocab);
            found += 129 - reads(&model, &shared, &tokens);
        }
    }
    assert!(found > 0);
}

#[test]
fn a_hole_in_place_of_a_state_is_not_read() {
    const HOLE: u64 = 1 << 36;
    let (model, folder) = (hybrid(), tempfile::tempdir().expect("a folder"));
    let tokens = Random(3).tokens(60, model.spec().vocab);
    let maker = store(1 << 24, 16, Some(folder.path()));
    session(&model, &None, Some(&maker))
        .read_history(&tokens)
        .expect("a history");
    drop(maker);
    for path in checkpoints(folder.path()) {
        let mut head = std::fs::read(&path).expect("a file");
        let length = head.len() as u64;
        let number =
            |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        // The head's fifth number is the number of pieces, its sixth the bytes of the state; a piece begins with its number of tokens.
        let (pieces, state) = (number(72) as usize, number(80));
        let count = |piece: usize| number(96 + 24 * piece) as usize;
        let end = 96 + 24 * pieces + 4 * (0..pieces).map(count).sum::<usize>();
        head.truncate(end);
        head[80..88].copy_from_slice(&(state + HOLE).to_le_bytes());
        let sum = crc32fast::hash(&head).to_le_bytes();
        head.extend(sum);
        std::fs::write(&path, head).expect("forged");
        let file = std::fs::File::options().write(true).open(&path);
        file.expect("there").set_len(length + HOLE).expect("a hole");
    }
    let shared = store(1 << 24, 16, Some(folder.path()));
    assert_eq!(reads(&model, &shared, &tokens), 60);
    let notes = shared.take_notes();
    assert!(notes[0].contains("the store's memory"), "{notes:?}");
}

#[test]
fn forged_numbers_of_a_file_harm_nothing() {
    let (mut refused, mut taken) = (0, 0);
    for (name, model) in models() {
        if ![
            "lansa",
            "lalte_stream_gqa",
            "hax_mamba_argmax_ks_stream",
            "gdn_swa",
        ]
        .contains(&&*name)
        {
            continue;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = Random(7).tokens(60, model.spec().vocab);
        let maker = store(1 << 24, 32, Some(folder.path()));
        session(&model, &None, Some(&maker))
            .read_history(&tokens)
            .expect("a history");
        drop(maker);
        // The longest checkpoint. After the magic number and the fingerprint its head has seven numbers: the fourth is the position, followed
        // by the numbers of pieces, bytes of state and logits.
        let head = |path: &PathBuf, index: usize| {
            let file = std::fs::read(path).expect("a file");
            let number = file[40 + 8 * index..][..8].try_into();
            u64::from_le_bytes(number.expect("eight bytes")) as usize
        };
        let key = std::fs::read(folder.path().join("key")).expect("the key");
        let files = || checkpoints(folder.path());
        let written = files();
        let deepest = written.iter().max_by_key(|path| head(path, 3));
        let path = deepest.expect("a file").clone();
        let (deepest, state, logits) = (head(&path, 3), head(&path, 5), head(&path, 6));
        let file = std::fs::read(&path).expect("a file");
        // The state is stored before the logits and the keyed hash.
        let end = file.len() - 32 - 4 * logits;
        let number =
            |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
        // Small integers are counters, all other numbers are values.
        let all: Vec<usize> = (end - state..end - 3).step_by(4).collect();
        let is_small = |at: &usize| (1..=200).contains(&number(*at));
        let (counters, values): (Vec<usize>, Vec<usize>) = all.into_iter().partition(is_small);
        let mut random = Random(11);
        for _ in 0..60 {
            let mut forged = file.clone();
            let places = match random.below(2) {
                0 if !counters.is_empty() => &counters,
                _ => &values,
            };
            let at = places[random.below(places.len())];
            let value = [u32::MAX, 1 << 31, 0x7fff_ffff, 300][random.below(4)];
            forged[at..at + 4].copy_from_slice(&value.to_le_bytes());
            seal_checkpoint(&mut forged, &key);
            // Removes the files that the sessions below have written.
            for path in files().iter().filter(|path| !written.contains(path)) {
                std::fs::remove_file(path).expect("removed");
            }
            std::fs::write(&path, forged).expect("forged");
            let shared = store(1 << 24, 32, Some(folder.path()));
            let mut one = session(&model, &None, Some(&shared));
            let read = one
                .read_history(&[&tokens[..], &[1]].concat())
                .expect("a history");
            if read.reused < deepest {
                refused += 1;
            } else {
                taken += 1;
            }
            one.feed(&tokens[..20]).expect("more");
        }
    }
    println!("{refused} states refused, {taken} read on");
    assert!(
        refused > 0 && taken > 0,
        "{refused} refused, {taken} read on"
    );
}

/// A directory with the checkpoint of a history, and the file of the checkpoint.
fn with_checkpoint(model: &Arc<Model>, tokens: &[u32]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let maker = store(1 << 24, 64, Some(folder.path()));
    reads(model, &maker, tokens);
    drop(maker);
    let mut files = checkpoints(folder.path());
    assert_eq!(files.len(), 1);
    let file = files.remove(0);
    (folder, file)
}

#[test]
fn a_changed_state_is_not_used_whatever_its_checksum() {
    let model = hybrid();
    let tokens = Random(3).tokens(60, model.spec().vocab);
    let (folder, path) = with_checkpoint(&model, &tokens);
    let file = std::fs::read(&path).expect("a file");
    let key = std::fs::read(folder.path().join("key")).expect("the key");
    let at = file.len() - 32 - 4 * model.spec().vocab - 64;
    let changed = |value: f32, key: Option<&[u8]>| {
        let mut file = file.clone();
        file[at..at + 4].copy_from_slice(&value.to_le_bytes());
        match key {
            Some(key) => seal_checkpoint(&mut file, key),
            None => {
                let end = file.len() - 4;
                let sum = crc32fast::hash(&file[..end]);
                file[end..].copy_from_slice(&sum.to_le_bytes());
            }
        }
        std::fs::write(&path, file).expect("written");
        let shared = store(1 << 24, 64, Some(folder.path()));
        let mut one = session(&model, &None, Some(&shared));
        let read = one.read_history(&tokens).expect("a history");
        assert!(one.logits().expect("logits").iter().all(|x| x.is_finite()));
        (read.reused, shared.take_notes().join("; "))
    };
    for key in [None, Some(&[7u8; 32][..])] {
        let (reused, notes) = changed(1.0, key);
        assert_eq!(reused, 0);
        assert!(notes.contains("hash by the key"), "{notes}");
    }
    // With the key only values that no state has are refused.
    assert_eq!(changed(0.5, Some(&key)), (60, String::new()));
    for value in [f32::NAN, f32::INFINITY] {
        let (reused, notes) = changed(value, Some(&key));
        assert_eq!(reused, 0);
        assert!(notes.contains("not finite"), "{notes}");
    }
}

#[cfg(unix)]
#[test]
fn links_in_a_directory_are_neither_read_nor_written_through() {
    use std::os::unix::fs::symlink;
    let model = hybrid();
    let tokens = Random(3).tokens(60, model.spec().vocab);
    let (folder, path) = with_checkpoint(&model, &tokens);
    let target = folder.path().join("the user's file");
    std::fs::rename(&path, &target).expect("moved");
    let before = std::fs::read(&target).expect("a file");
    symlink(&target, &path).expect("a link");
    let shared = store(1 << 24, 64, Some(folder.path()));
    assert_eq!(reads(&model, &shared, &tokens), 60);
    let notes = shared.take_notes();
    assert!(notes[0].contains("a link"), "{notes:?}");
    shared.flush();
    assert_eq!(std::fs::read(&target).expect("a file"), before);
    let about = std::fs::symlink_metadata(&path).expect("a file");
    assert!(about.is_file(), "the link is replaced");
    std::fs::write(&target, "other").expect("written");
    let again = store(1 << 24, 64, Some(folder.path()));
    assert_eq!(reads(&model, &again, &tokens), 0);
}

#[cfg(unix)]
#[test]
fn a_directory_of_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    for (mode, said) in [
        (0o777, "everyone may write"),
        (0o770, "its group may write"),
    ] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), mode).expect("changed");
        let mut options = PrefixStoreOptions::default();
        options.directory = Some(folder.path().into());
        let error = PrefixStore::new(options).err().expect("a refusal");
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// Two models that differ only in the last byte of a matrix.
#[test]
fn models_that_differ_in_one_byte_share_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/hf_qwen3_5_moe_fused"
    ));
    let open = |name: &str, change: bool| {
        let to = folder.path().join(name);
        std::fs::create_dir(&to).expect("a folder");
        for entry in std::fs::read_dir(from).expect("the fixture").flatten() {
            let mut bytes = std::fs::read(entry.path()).expect("a file");
            if change && entry.file_name() == "model.safetensors" {
                let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                let names: serde_json::Value =
                    serde_json::from_slice(&bytes[8..8 + header as usize]).expect("JSON");
                let tensors = names.as_object().expect("an object").values();
                let sizes = tensors.filter_map(|tensor| {
                    let range = tensor.get("data_offsets")?.as_array()?;
                    Some((range[0].as_u64()?, range[1].as_u64()?))
                });
                let largest = sizes
                    .max_by_key(|(start, end)| end - start)
                    .expect("tensors");
                assert!(largest.1 - largest.0 > 4096);
                bytes[8 + (header + largest.1) as usize - 1] ^= 1;
            }
            std::fs::write(to.join(entry.file_name()), bytes).expect("written");
        }
        Model::open(to).expect("a model")
    };
    let (one, other, again) = (
        open("one", false),
        open("other", true),
        open("again", false),
    );
    assert_eq!(one.label(), other.label());
    assert_ne!(
        one.fingerprint().expect("a hash"),
        other.fingerprint().expect("a hash")
    );
    let tokens = Random(3).tokens(60, one.spec().vocab);
    let path = folder.path().join("store");
    for directory in [None, Some(&*path)] {
        let shared = store(1 << 24, 64, directory);
        assert_eq!(reads(&one, &shared, &tokens), 60);
        shared.flush();
        assert_eq!(reads(&other, &shared, &tokens), 60);
        assert_eq!(reads(&again, &shared, &tokens), 0);
    }
    // A saved session is of the model whose bytes are the same, wherever its file is.
    let mut saved = session(&one, &None, None);
    saved.feed(&tokens).expect("tokens");
    let file = folder.path().join("session");
    saved
        .snapshot()
        .expect("a snapshot")
        .save(&file)
        .expect("saved");
    let snapshot = waterline::Snapshot::load(&file).expect("a snapshot");
    let refused = session(&other, &None, None).restore(&snapshot);
    let said = refused.expect_err("another model").to_string();
    assert!(said.contains("another model than"), "{said}");
    session(&again, &None, None)
        .restore(&snapshot)
        .expect("the same model");
}
