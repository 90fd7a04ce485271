//! Writes the files that fuzzing starts from: `corpus/KIND/seed-N`.

#[path = "../../inputs/mod.rs"]
mod inputs;

fn main() -> std::io::Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for kind in &inputs::KINDS {
        let folder = root.join(kind.name);
        std::fs::create_dir_all(&folder)?;
        for (i, seed) in (kind.seeds)().into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{i}")), seed)?;
        }
    }
    Ok(())
}
