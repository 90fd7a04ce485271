// Measures what llama-bench measures, with libllama alone, where building llama-bench itself is too much:
// a prompt, then a generation, each after one that is not timed. Takes the options that compare.py gives, prints the JSON that it reads.
//
//     cc -O2 -I llama.cpp/include -I llama.cpp/ggml/include llama_timer.c -L llama.cpp/build/bin -lllama -lggml -lggml-base -o llama-timer
//
// A build with GGML_BACKEND_DL finds its CPU variants in the folder that GGML_BACKEND_PATH names.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-backend.h"
#include "llama.h"

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

static void errors(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void decode(struct llama_context *context, llama_token *tokens, int count) {
    if (llama_decode(context, llama_batch_get_one(tokens, count))) {
        fprintf(stderr, "llama_decode failed\n");
        exit(1);
    }
    llama_synchronize(context);
}

int main(int argc, char **argv) {
    const char *path = NULL, *folder = getenv("GGML_BACKEND_PATH");
    int threads = 1, prompt = 256, generation = 48;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "-m")) path = argv[i + 1];
        if (!strcmp(argv[i], "-t")) threads = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "-p")) prompt = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "-n")) generation = atoi(argv[i + 1]);
    }
    llama_log_set(errors, NULL);
    if (folder) ggml_backend_load_all_from_path(folder);
    else ggml_backend_load_all();
    struct llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model) return 1;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = prompt + generation + 1;
    params.n_threads = params.n_threads_batch = threads;
    struct llama_context *context = llama_init_from_model(model, params);
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token *tokens = malloc((prompt + generation + 1) * sizeof *tokens);
    for (int i = 0; i < prompt + generation + 1; i++) tokens[i] = rand() % vocab;
    double seconds[2];
    for (int turn = 0; turn < 2; turn++) {
        llama_memory_clear(llama_get_memory(context), true);
        double begin = now();
        decode(context, tokens, prompt);
        seconds[0] = now() - begin;
    }
    llama_memory_clear(llama_get_memory(context), true);
    decode(context, tokens, 1);
    double begin = now();
    for (int i = 1; i <= generation; i++) decode(context, tokens + i, 1);
    seconds[1] = now() - begin;
    printf("[{\"n_gen\": 0, \"avg_ts\": %f}, {\"n_gen\": %d, \"avg_ts\": %f}]\n", prompt / seconds[0], generation, generation / seconds[1]);
    return 0;
}
