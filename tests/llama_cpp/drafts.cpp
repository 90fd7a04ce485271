// Prints what llama.cpp's MTP block drafts, greedily, behind texts of several lengths: as JSON.
//
//   c++ -std=c++17 -O1 -ILLAMA/include -ILLAMA/ggml/include -ILLAMA/src drafts.cpp -LBUILD/bin -lllama -o drafts; ./drafts qwen35-mtp.gguf

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama-ext.h"
#include "llama.h"

static void require(bool done, const char* what) {
  if (!done) {
    fprintf(stderr, "failed: %s\n", what);
    exit(1);
  }
}

int main(int, char** arguments) {
  llama_log_set([](ggml_log_level level, const char* text, void*) { if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr); }, nullptr);
  llama_backend_init();
  llama_model_params model_params = llama_model_default_params();
  model_params.load_mtp = true;
  llama_model* model = llama_model_load_from_file(arguments[1], model_params);
  require(model, "the model");
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model)), hidden = llama_model_n_embd(model);
  const int drafts = 6;
  std::vector<llama_token> text;
  for (int i = 0; i < 64; i++) text.push_back(31 * i * i % vocab);
  printf("{\"tokens\": [");
  for (size_t i = 0; i < text.size(); i++) printf("%s%d", i ? ", " : "", text[i]);
  printf("],\n\"drafts\": {");
  bool first = true;
  for (int length : {1, 2, 5, 9, 16, 23, 30, 47, 63}) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 128;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.n_threads = params.n_threads_batch = 1;
    llama_context* main_context = llama_init_from_model(model, params);
    params.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
    params.ctx_other = main_context;
    llama_context* block_context = llama_init_from_model(model, params);
    require(main_context && block_context, "the contexts");
    llama_set_embeddings_nextn(main_context, true, false);
    llama_set_embeddings_nextn(block_context, true, true);
    require(llama_decode(main_context, llama_batch_get_one(text.data(), length)) == 0, "the text");
    const float* rows = llama_get_embeddings_nextn(main_context);
    std::vector<std::vector<float>> states(length + 1, std::vector<float>(hidden, 0.0f));
    for (int i = 0; i < length; i++) states[i + 1].assign(rows + i * hidden, rows + (i + 1) * hidden);
    llama_batch_ext* batch = llama_batch_ext_init(block_context);
    // A token with the hidden state of the token before.
    auto add = [&](llama_token token, llama_pos position, const std::vector<float>& state, bool output) {
      int index = llama_batch_ext_add_token(batch, 0, token);
      require(index >= 0 && llama_batch_ext_set_pos(batch, index, &position), "a position");
      require(llama_batch_ext_set_embd_token(batch, index, {state.data(), 1, (size_t)hidden}), "a state");
      require(llama_batch_ext_set_output_logits(batch, index, output), "an output");
      return index;
    };
    for (int i = 0; i < length; i++) add(text[i], i, states[i], false);
    require(llama_process(block_context, LLAMA_PROCESS_TYPE_DECODE, batch) == 0, "the block's text");
    printf("%s\n\"%d\": [", first ? "" : ",", length);
    first = false;
    llama_token token = text[length];
    std::vector<float> state = states[length];
    for (int i = 0; i < drafts; i++) {
      llama_batch_ext_clear(batch);
      int index = add(token, length + i, state, true);
      require(llama_process(block_context, LLAMA_PROCESS_TYPE_DECODE, batch) == 0, "a draft");
      const float* logits = llama_get_logits_ith(block_context, index);
      const float* next = llama_get_embeddings_nextn_ith(block_context, index);
      require(logits && next, "logits");
      int best = 0, second = 1;
      for (int j = 1; j < vocab; j++) {
        if (logits[j] > logits[best]) second = best, best = j;
        else if (second == best || logits[j] > logits[second]) second = j;
      }
      state.assign(next, next + hidden);
      token = best;
      printf("%s[%d, %.4f]", i ? ", " : "", token, logits[best] - logits[second]);
    }
    printf("]");
    llama_batch_ext_free(batch);
    llama_free(block_context);
    llama_free(main_context);
  }
  printf("\n}}\n");
}
