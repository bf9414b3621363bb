// Forward and backward pass of a ReLU RNN by oneDNN, timed: layers.py compiles and runs it.
//
//   onednn_rnn HIDDEN STEPS BATCH INPUTS LAYERS DIRECTIONS SECONDS        prints the median seconds of both passes
//
// As in training, weights come in the user's layout at every pass and their gradients go back into it: oneDNN's own
// layouts are made and left inside the time. Layers are calls of their own: one call takes only layers of equal inputs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "oneapi/dnnl/dnnl.hpp"

using namespace dnnl;
using Dims = memory::dims;
using Tag = memory::format_tag;
using Arguments = std::unordered_map<int, memory>;

static memory::desc described(const Dims& dims, Tag tag) { return {dims, memory::data_type::f32, tag}; }

struct Layer {
  engine& eng;
  stream& s;
  memory::desc src, iter, weights, recurrent, bias, dst;
  vanilla_rnn_forward::primitive_desc forward_pd;
  vanilla_rnn_backward::primitive_desc backward_pd;
  memory x, y, dx, dy, user_weights, user_recurrent, b, user_dweights, user_drecurrent, db, workspace;
  memory weights_f, recurrent_f, weights_b, recurrent_b, dweights, drecurrent;

  Layer(engine& eng, stream& s, long hidden, long steps, long batch, long inputs, long directions)
      : eng(eng), s(s) {
    const auto way = directions == 2 ? rnn_direction::bidirectional_concat : rnn_direction::unidirectional_left2right;
    src = described({steps, batch, inputs}, Tag::tnc);
    dst = described({steps, batch, hidden * directions}, Tag::tnc);
    bias = described({1, directions, 1, hidden}, Tag::ldgo);
    const Dims of_weights{1, directions, inputs, 1, hidden}, of_recurrent{1, directions, hidden, 1, hidden};
    const auto any_weights = described(of_weights, Tag::any), any_recurrent = described(of_recurrent, Tag::any);
    const auto relu = algorithm::eltwise_relu;
    forward_pd = {eng, prop_kind::forward_training, relu, way, src, memory::desc(), any_weights, any_recurrent, bias, dst,
                  memory::desc()};
    backward_pd = {eng, prop_kind::backward, relu, way, src, memory::desc(), any_weights, any_recurrent, bias, dst,
                   memory::desc(), src, memory::desc(), any_weights, any_recurrent, bias, dst, memory::desc(), forward_pd};
    // The user's layout is torch's: rows are outputs.
    weights = described(of_weights, Tag::ldgoi), recurrent = described(of_recurrent, Tag::ldgoi);
    x = filled(src, 1.0), y = filled(dst, 0), dx = filled(src, 0), dy = filled(dst, 1e-3), b = filled(bias, 0.1);
    user_weights = filled(weights, 0.3), user_recurrent = filled(recurrent, std::sqrt(6.0 / hidden));
    user_dweights = filled(weights, 0), user_drecurrent = filled(recurrent, 0), db = filled(bias, 0);
    workspace = memory(forward_pd.workspace_desc(), eng);
    weights_f = memory(forward_pd.weights_layer_desc(), eng), recurrent_f = memory(forward_pd.weights_iter_desc(), eng);
    weights_b = memory(backward_pd.weights_layer_desc(), eng), recurrent_b = memory(backward_pd.weights_iter_desc(), eng);
    dweights = memory(backward_pd.diff_weights_layer_desc(), eng);
    drecurrent = memory(backward_pd.diff_weights_iter_desc(), eng);
  }

  memory filled(const memory::desc& desc, double range) {
    static std::mt19937 generator(0);
    memory result(desc, eng);
    float* data = static_cast<float*>(result.get_data_handle());
    std::uniform_real_distribution<float> number(-range, range);
    for (size_t i = 0; i < desc.get_size() / sizeof(float); i++) data[i] = range ? number(generator) : 0.0f;
    return result;
  }
  void move(memory& from, memory& to) { reorder(from, to).execute(s, from, to); }
  static void clear(memory& m) { std::fill_n(static_cast<char*>(m.get_data_handle()), m.get_desc().get_size(), 0); }

  void forth() {
    move(user_weights, weights_f), move(user_recurrent, recurrent_f);
    Arguments arguments{{DNNL_ARG_SRC_LAYER, x}, {DNNL_ARG_WEIGHTS_LAYER, weights_f}, {DNNL_ARG_WEIGHTS_ITER, recurrent_f},
                        {DNNL_ARG_BIAS, b}, {DNNL_ARG_DST_LAYER, y}, {DNNL_ARG_WORKSPACE, workspace}};
    vanilla_rnn_forward(forward_pd).execute(s, arguments);
  }
  void back() {
    move(user_weights, weights_b), move(user_recurrent, recurrent_b);
    for (memory* sums : {&dweights, &drecurrent, &db}) clear(*sums);  // they are added to
    Arguments arguments{{DNNL_ARG_SRC_LAYER, x}, {DNNL_ARG_WEIGHTS_LAYER, weights_b}, {DNNL_ARG_WEIGHTS_ITER, recurrent_b},
                        {DNNL_ARG_BIAS, b}, {DNNL_ARG_DST_LAYER, y}, {DNNL_ARG_WORKSPACE, workspace},
                        {DNNL_ARG_DIFF_SRC_LAYER, dx}, {DNNL_ARG_DIFF_WEIGHTS_LAYER, dweights},
                        {DNNL_ARG_DIFF_WEIGHTS_ITER, drecurrent}, {DNNL_ARG_DIFF_BIAS, db}, {DNNL_ARG_DIFF_DST_LAYER, dy}};
    vanilla_rnn_backward(backward_pd).execute(s, arguments);
    move(dweights, user_dweights), move(drecurrent, user_drecurrent);
  }
};

int main(int count, char** words) {
  if (count != 8) return 2;
  long numbers[6];
  for (int k = 0; k < 6; k++) numbers[k] = std::atol(words[k + 1]);
  const auto [hidden, steps, batch, inputs, layers, directions] = numbers;
#ifdef __SSE__
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);  // as the other methods have it
#endif
  engine eng(engine::kind::cpu, 0);
  stream s(eng);
  std::vector<std::unique_ptr<Layer>> stack;
  for (long k = 0; k < layers; k++) {
    stack.push_back(std::make_unique<Layer>(eng, s, hidden, steps, batch, k ? hidden * directions : inputs, directions));
    if (k) stack[k]->x = stack[k - 1]->y, stack[k - 1]->dy = stack[k]->dx;
  }
  std::vector<double> taken;
  for (double total = 0; total < std::atof(words[7]) || taken.size() < 5; total += taken.back()) {
    const auto begun = std::chrono::steady_clock::now();
    for (auto& layer : stack) layer->forth();
    for (auto layer = stack.rbegin(); layer != stack.rend(); ++layer) (*layer)->back();
    s.wait();
    taken.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }
  std::nth_element(taken.begin(), taken.begin() + taken.size() / 2, taken.end());
  std::printf("%.9f\n", taken[taken.size() / 2]);
}
