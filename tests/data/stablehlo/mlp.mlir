#loc1 = loc("params['down']")
#loc2 = loc("params['gain']")
#loc3 = loc("params['up']")
#loc4 = loc("x")
module @jit_mlp attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<256x64xf32> loc("params['down']"), %arg1: tensor<64xf32> loc("params['gain']"), %arg2: tensor<64x256xf32> loc("params['up']"), %arg3: tensor<8x32x64xf32> loc("x")) -> (tensor<8x32x64xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [2] : (tensor<64xf32>) -> tensor<1x1x64xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1, 2] : (tensor<1x1x64xf32>) -> tensor<8x32x64xf32>
    %2 = stablehlo.multiply %arg3, %1 : tensor<8x32x64xf32>
    %3 = stablehlo.multiply %arg3, %arg3 : tensor<8x32x64xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<8x32x64xf32>, tensor<f32>) -> tensor<8x32xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<8x32xf32>) -> tensor<8x32x1xf32>
    %cst_0 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x32x1xf32>
    %7 = stablehlo.divide %5, %6 : tensor<8x32x1xf32>
    %cst_1 = stablehlo.constant dense<9.99999997E-7> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<8x32x1xf32>
    %9 = stablehlo.add %7, %8 : tensor<8x32x1xf32>
    %10 = stablehlo.rsqrt %9 : tensor<8x32x1xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2] : (tensor<8x32x1xf32>) -> tensor<8x32x64xf32>
    %12 = stablehlo.multiply %2, %11 : tensor<8x32x64xf32>
    %13 = stablehlo.dot_general %12, %arg2, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32x64xf32>, tensor<64x256xf32>) -> tensor<8x32x256xf32>
    %cst_2 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<8x32x256xf32>
    %15 = stablehlo.multiply %14, %13 : tensor<8x32x256xf32>
    %16 = stablehlo.negate %13 : tensor<8x32x256xf32>
    %cst_3 = stablehlo.constant dense<0.707106769> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<8x32x256xf32>
    %18 = stablehlo.multiply %16, %17 : tensor<8x32x256xf32>
    %19 = chlo.erfc %18 : tensor<8x32x256xf32> -> tensor<8x32x256xf32>
    %20 = stablehlo.multiply %15, %19 : tensor<8x32x256xf32>
    %21 = stablehlo.dot_general %20, %arg0, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32x256xf32>, tensor<256x64xf32>) -> tensor<8x32x64xf32>
    %22 = stablehlo.add %arg3, %21 : tensor<8x32x64xf32>
    return %22 : tensor<8x32x64xf32>
  }
}
