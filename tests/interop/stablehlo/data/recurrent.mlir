"builtin.module"() <{sym_name = "jit_lstm_gradient"}> ({
  "func.func"() <{arg_attrs = [{}, {}, {}], function_type = (tensor<16xf32>, tensor<7x16xf32>, tensor<5x2x3xf32>) -> (tensor<f32>, tensor<16xf32>, tensor<7x16xf32>), res_attrs = [{jax.result_info = "result[0]"}, {jax.result_info = "result[1]['b']"}, {jax.result_info = "result[1]['w']"}], sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg40: tensor<16xf32>, %arg41: tensor<7x16xf32>, %arg42: tensor<5x2x3xf32>):
    %108 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %109 = "stablehlo.broadcast_in_dim"(%108) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %110 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %111 = "stablehlo.broadcast_in_dim"(%110) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x3xf32>
    %112 = "stablehlo.broadcast_in_dim"(%arg40) <{broadcast_dimensions = array<i64: 1>}> : (tensor<16xf32>) -> tensor<1x16xf32>
    %113 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %114 = "stablehlo.broadcast_in_dim"(%113) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %115 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %116 = "stablehlo.broadcast_in_dim"(%115) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x7xf32>
    %117 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %118 = "stablehlo.broadcast_in_dim"(%117) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %119 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %120 = "stablehlo.broadcast_in_dim"(%119) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %121 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %122 = "stablehlo.broadcast_in_dim"(%121) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %123 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %124 = "stablehlo.broadcast_in_dim"(%123) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %125 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %126 = "stablehlo.broadcast_in_dim"(%125) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %127 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %128 = "stablehlo.broadcast_in_dim"(%127) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %129 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %130 = "stablehlo.broadcast_in_dim"(%129) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %131 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %132 = "stablehlo.broadcast_in_dim"(%131) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %133 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %134 = "stablehlo.broadcast_in_dim"(%133) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %135 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %136 = "stablehlo.broadcast_in_dim"(%135) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %137 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %138 = "stablehlo.broadcast_in_dim"(%137) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %139 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %140:19 = "stablehlo.while"(%arg42, %arg41, %112, %139, %109, %109, %114, %116, %118, %120, %122, %124, %126, %128, %130, %132, %134, %136, %138) ({
    ^bb0(%arg104: tensor<5x2x3xf32>, %arg105: tensor<7x16xf32>, %arg106: tensor<1x16xf32>, %arg107: tensor<i32>, %arg108: tensor<2x4xf32>, %arg109: tensor<2x4xf32>, %arg110: tensor<5x2x4xf32>, %arg111: tensor<5x2x7xf32>, %arg112: tensor<5x2x4xf32>, %arg113: tensor<5x2x4xf32>, %arg114: tensor<5x2x4xf32>, %arg115: tensor<5x2x4xf32>, %arg116: tensor<5x2x4xf32>, %arg117: tensor<5x2x4xf32>, %arg118: tensor<5x2x4xf32>, %arg119: tensor<5x2x4xf32>, %arg120: tensor<5x2x4xf32>, %arg121: tensor<5x2x4xf32>, %arg122: tensor<5x2x4xf32>):
      %208 = "stablehlo.constant"() <{value = dense<5> : tensor<i32>}> : () -> tensor<i32>
      %209 = "stablehlo.compare"(%arg107, %208) <{compare_type = #stablehlo<comparison_type SIGNED>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      "stablehlo.return"(%209) : (tensor<i1>) -> ()
    }, {
    ^bb0(%arg85: tensor<5x2x3xf32>, %arg86: tensor<7x16xf32>, %arg87: tensor<1x16xf32>, %arg88: tensor<i32>, %arg89: tensor<2x4xf32>, %arg90: tensor<2x4xf32>, %arg91: tensor<5x2x4xf32>, %arg92: tensor<5x2x7xf32>, %arg93: tensor<5x2x4xf32>, %arg94: tensor<5x2x4xf32>, %arg95: tensor<5x2x4xf32>, %arg96: tensor<5x2x4xf32>, %arg97: tensor<5x2x4xf32>, %arg98: tensor<5x2x4xf32>, %arg99: tensor<5x2x4xf32>, %arg100: tensor<5x2x4xf32>, %arg101: tensor<5x2x4xf32>, %arg102: tensor<5x2x4xf32>, %arg103: tensor<5x2x4xf32>):
      %191 = "func.call"(%arg85, %arg88) <{callee = @dynamic_index_in_dim}> : (tensor<5x2x3xf32>, tensor<i32>) -> tensor<2x3xf32>
      %192:15 = "func.call"(%arg86, %arg87, %arg89, %arg90, %191) <{callee = @closed_call}> : (tensor<7x16xf32>, tensor<1x16xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x3xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x7xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>)
      %193 = "func.call"(%arg91, %192#2, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %194 = "func.call"(%arg92, %192#3, %arg88) <{callee = @dynamic_update_index_in_dim_0}> : (tensor<5x2x7xf32>, tensor<2x7xf32>, tensor<i32>) -> tensor<5x2x7xf32>
      %195 = "func.call"(%arg93, %192#4, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %196 = "func.call"(%arg94, %192#5, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %197 = "func.call"(%arg95, %192#6, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %198 = "func.call"(%arg96, %192#7, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %199 = "func.call"(%arg97, %192#8, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %200 = "func.call"(%arg98, %192#9, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %201 = "func.call"(%arg99, %192#10, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %202 = "func.call"(%arg100, %192#11, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %203 = "func.call"(%arg101, %192#12, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %204 = "func.call"(%arg102, %192#13, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %205 = "func.call"(%arg103, %192#14, %arg88) <{callee = @dynamic_update_index_in_dim}> : (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>
      %206 = "stablehlo.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
      %207 = "stablehlo.add"(%arg88, %206) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%arg85, %arg86, %arg87, %207, %192#0, %192#1, %193, %194, %195, %196, %197, %198, %199, %200, %201, %202, %203, %204, %205) : (tensor<5x2x3xf32>, tensor<7x16xf32>, tensor<1x16xf32>, tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x7xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>) -> ()
    }) : (tensor<5x2x3xf32>, tensor<7x16xf32>, tensor<1x16xf32>, tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x7xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>) -> (tensor<5x2x3xf32>, tensor<7x16xf32>, tensor<1x16xf32>, tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x7xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>)
    %141 = "chlo.square"(%140#6) : (tensor<5x2x4xf32>) -> tensor<5x2x4xf32>
    %142 = "stablehlo.constant"() <{value = dense<2.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %143 = "stablehlo.broadcast_in_dim"(%142) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %144 = "stablehlo.multiply"(%143, %140#6) : (tensor<5x2x4xf32>, tensor<5x2x4xf32>) -> tensor<5x2x4xf32>
    %145 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %146 = "stablehlo.reduce"(%141, %145) <{dimensions = array<i64: 0, 1, 2>}> ({
    ^bb0(%arg83: tensor<f32>, %arg84: tensor<f32>):
      %190 = "stablehlo.add"(%arg83, %arg84) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%190) : (tensor<f32>) -> ()
    }) : (tensor<5x2x4xf32>, tensor<f32>) -> tensor<f32>
    %147 = "stablehlo.constant"() <{value = dense<4.000000e+01> : tensor<f32>}> : () -> tensor<f32>
    %148 = "stablehlo.divide"(%146, %147) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %149 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %150 = "stablehlo.broadcast_in_dim"(%149) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %151 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %152 = "stablehlo.broadcast_in_dim"(%151) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %153 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %154 = "stablehlo.constant"() <{value = dense<4.000000e+01> : tensor<f32>}> : () -> tensor<f32>
    %155 = "stablehlo.divide"(%153, %154) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %156 = "stablehlo.broadcast_in_dim"(%155) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<5x2x4xf32>
    %157 = "stablehlo.multiply"(%156, %144) : (tensor<5x2x4xf32>, tensor<5x2x4xf32>) -> tensor<5x2x4xf32>
    %158 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %159 = "stablehlo.broadcast_in_dim"(%158) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %160 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %161 = "stablehlo.broadcast_in_dim"(%160) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %162 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %163 = "stablehlo.broadcast_in_dim"(%162) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<7x16xf32>
    %164 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %165 = "stablehlo.broadcast_in_dim"(%164) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<16xf32>
    %166 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %167:20 = "stablehlo.while"(%157, %140#7, %140#8, %140#9, %140#10, %140#11, %140#12, %140#13, %140#14, %140#15, %140#16, %140#17, %140#18, %111, %arg41, %166, %163, %165, %159, %161) ({
    ^bb0(%arg63: tensor<5x2x4xf32>, %arg64: tensor<5x2x7xf32>, %arg65: tensor<5x2x4xf32>, %arg66: tensor<5x2x4xf32>, %arg67: tensor<5x2x4xf32>, %arg68: tensor<5x2x4xf32>, %arg69: tensor<5x2x4xf32>, %arg70: tensor<5x2x4xf32>, %arg71: tensor<5x2x4xf32>, %arg72: tensor<5x2x4xf32>, %arg73: tensor<5x2x4xf32>, %arg74: tensor<5x2x4xf32>, %arg75: tensor<5x2x4xf32>, %arg76: tensor<2x3xf32>, %arg77: tensor<7x16xf32>, %arg78: tensor<i32>, %arg79: tensor<7x16xf32>, %arg80: tensor<16xf32>, %arg81: tensor<2x4xf32>, %arg82: tensor<2x4xf32>):
      %188 = "stablehlo.constant"() <{value = dense<5> : tensor<i32>}> : () -> tensor<i32>
      %189 = "stablehlo.compare"(%arg78, %188) <{compare_type = #stablehlo<comparison_type SIGNED>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      "stablehlo.return"(%189) : (tensor<i1>) -> ()
    }, {
    ^bb0(%arg43: tensor<5x2x4xf32>, %arg44: tensor<5x2x7xf32>, %arg45: tensor<5x2x4xf32>, %arg46: tensor<5x2x4xf32>, %arg47: tensor<5x2x4xf32>, %arg48: tensor<5x2x4xf32>, %arg49: tensor<5x2x4xf32>, %arg50: tensor<5x2x4xf32>, %arg51: tensor<5x2x4xf32>, %arg52: tensor<5x2x4xf32>, %arg53: tensor<5x2x4xf32>, %arg54: tensor<5x2x4xf32>, %arg55: tensor<5x2x4xf32>, %arg56: tensor<2x3xf32>, %arg57: tensor<7x16xf32>, %arg58: tensor<i32>, %arg59: tensor<7x16xf32>, %arg60: tensor<16xf32>, %arg61: tensor<2x4xf32>, %arg62: tensor<2x4xf32>):
      %168 = "stablehlo.constant"() <{value = dense<5> : tensor<i32>}> : () -> tensor<i32>
      %169 = "stablehlo.subtract"(%168, %arg58) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      %170 = "stablehlo.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
      %171 = "stablehlo.subtract"(%169, %170) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      %172 = "func.call"(%arg43, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %173 = "func.call"(%arg44, %171) <{callee = @dynamic_index_in_dim_2}> : (tensor<5x2x7xf32>, tensor<i32>) -> tensor<2x7xf32>
      %174 = "func.call"(%arg45, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %175 = "func.call"(%arg46, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %176 = "func.call"(%arg47, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %177 = "func.call"(%arg48, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %178 = "func.call"(%arg49, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %179 = "func.call"(%arg50, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %180 = "func.call"(%arg51, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %181 = "func.call"(%arg52, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %182 = "func.call"(%arg53, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %183 = "func.call"(%arg54, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %184 = "func.call"(%arg55, %171) <{callee = @dynamic_index_in_dim_1}> : (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %185:4 = "func.call"(%arg56, %arg57, %arg59, %arg60, %arg61, %arg62, %172, %173, %174, %175, %176, %177, %178, %179, %180, %181, %182, %183, %184) <{callee = @closed_call_3}> : (tensor<2x3xf32>, tensor<7x16xf32>, tensor<7x16xf32>, tensor<16xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x7xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<7x16xf32>, tensor<16xf32>, tensor<2x4xf32>, tensor<2x4xf32>)
      %186 = "stablehlo.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
      %187 = "stablehlo.add"(%arg58, %186) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      "stablehlo.return"(%arg43, %arg44, %arg45, %arg46, %arg47, %arg48, %arg49, %arg50, %arg51, %arg52, %arg53, %arg54, %arg55, %arg56, %arg57, %187, %185#0, %185#1, %185#2, %185#3) : (tensor<5x2x4xf32>, tensor<5x2x7xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<2x3xf32>, tensor<7x16xf32>, tensor<i32>, tensor<7x16xf32>, tensor<16xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> ()
    }) : (tensor<5x2x4xf32>, tensor<5x2x7xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<2x3xf32>, tensor<7x16xf32>, tensor<i32>, tensor<7x16xf32>, tensor<16xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<5x2x4xf32>, tensor<5x2x7xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<5x2x4xf32>, tensor<2x3xf32>, tensor<7x16xf32>, tensor<i32>, tensor<7x16xf32>, tensor<16xf32>, tensor<2x4xf32>, tensor<2x4xf32>)
    "func.return"(%148, %167#17, %167#16) : (tensor<f32>, tensor<16xf32>, tensor<7x16xf32>) -> ()
  }) : () -> ()
  "func.func"() <{arg_attrs = [{}, {}], function_type = (tensor<5x2x3xf32>, tensor<i32>) -> tensor<2x3xf32>, res_attrs = [{}], sym_name = "dynamic_index_in_dim", sym_visibility = "private"}> ({
  ^bb0(%arg38: tensor<5x2x3xf32>, %arg39: tensor<i32>):
    %104 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %105 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %106 = "stablehlo.dynamic_slice"(%arg38, %arg39, %104, %105) <{slice_sizes = array<i64: 1, 2, 3>}> : (tensor<5x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x3xf32>
    %107 = "stablehlo.reshape"(%106) : (tensor<1x2x3xf32>) -> tensor<2x3xf32>
    "func.return"(%107) : (tensor<2x3xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<7x16xf32>, tensor<1x16xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x3xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x7xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>), res_attrs = [{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}], sym_name = "closed_call", sym_visibility = "private"}> ({
  ^bb0(%arg33: tensor<7x16xf32>, %arg34: tensor<1x16xf32>, %arg35: tensor<2x4xf32>, %arg36: tensor<2x4xf32>, %arg37: tensor<2x3xf32>):
    %48 = "stablehlo.concatenate"(%arg37, %arg35) <{dimension = 1 : i64}> : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32>
    %49 = "stablehlo.dot_general"(%48, %arg33) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}> : (tensor<2x7xf32>, tensor<7x16xf32>) -> tensor<2x16xf32>
    %50 = "stablehlo.broadcast_in_dim"(%arg34) <{broadcast_dimensions = array<i64: 0, 1>}> : (tensor<1x16xf32>) -> tensor<2x16xf32>
    %51 = "stablehlo.add"(%49, %50) : (tensor<2x16xf32>, tensor<2x16xf32>) -> tensor<2x16xf32>
    %52 = "stablehlo.slice"(%51) <{limit_indices = array<i64: 2, 4>, start_indices = array<i64: 0, 0>, strides = array<i64: 1, 1>}> : (tensor<2x16xf32>) -> tensor<2x4xf32>
    %53 = "stablehlo.slice"(%51) <{limit_indices = array<i64: 2, 8>, start_indices = array<i64: 0, 4>, strides = array<i64: 1, 1>}> : (tensor<2x16xf32>) -> tensor<2x4xf32>
    %54 = "stablehlo.slice"(%51) <{limit_indices = array<i64: 2, 12>, start_indices = array<i64: 0, 8>, strides = array<i64: 1, 1>}> : (tensor<2x16xf32>) -> tensor<2x4xf32>
    %55 = "stablehlo.slice"(%51) <{limit_indices = array<i64: 2, 16>, start_indices = array<i64: 0, 12>, strides = array<i64: 1, 1>}> : (tensor<2x16xf32>) -> tensor<2x4xf32>
    %56 = "stablehlo.negate"(%53) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %57 = "stablehlo.exponential"(%56) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %58 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %59 = "stablehlo.broadcast_in_dim"(%58) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %60 = "stablehlo.add"(%59, %57) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %61 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %62 = "stablehlo.broadcast_in_dim"(%61) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %63 = "stablehlo.divide"(%62, %60) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %64 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %65 = "stablehlo.broadcast_in_dim"(%64) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %66 = "stablehlo.subtract"(%65, %63) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %67 = "stablehlo.multiply"(%63, %66) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %68 = "stablehlo.multiply"(%63, %arg36) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %69 = "stablehlo.negate"(%52) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %70 = "stablehlo.exponential"(%69) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %71 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %72 = "stablehlo.broadcast_in_dim"(%71) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %73 = "stablehlo.add"(%72, %70) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %74 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %75 = "stablehlo.broadcast_in_dim"(%74) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %76 = "stablehlo.divide"(%75, %73) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %77 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %78 = "stablehlo.broadcast_in_dim"(%77) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %79 = "stablehlo.subtract"(%78, %76) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %80 = "stablehlo.multiply"(%76, %79) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %81 = "stablehlo.tanh"(%54) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %82 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %83 = "stablehlo.broadcast_in_dim"(%82) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %84 = "stablehlo.subtract"(%83, %81) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %85 = "stablehlo.multiply"(%76, %81) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %86 = "stablehlo.add"(%68, %85) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %87 = "stablehlo.negate"(%55) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %88 = "stablehlo.exponential"(%87) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %89 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %90 = "stablehlo.broadcast_in_dim"(%89) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %91 = "stablehlo.add"(%90, %88) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %92 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %93 = "stablehlo.broadcast_in_dim"(%92) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %94 = "stablehlo.divide"(%93, %91) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %95 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %96 = "stablehlo.broadcast_in_dim"(%95) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %97 = "stablehlo.subtract"(%96, %94) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %98 = "stablehlo.multiply"(%94, %97) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %99 = "stablehlo.tanh"(%86) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %100 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %101 = "stablehlo.broadcast_in_dim"(%100) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x4xf32>
    %102 = "stablehlo.subtract"(%101, %99) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %103 = "stablehlo.multiply"(%94, %99) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    "func.return"(%103, %86, %103, %48, %67, %arg36, %63, %80, %81, %84, %76, %98, %99, %102, %94) : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x7xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> ()
  }) : () -> ()
  "func.func"() <{arg_attrs = [{}, {}, {}], function_type = (tensor<5x2x4xf32>, tensor<2x4xf32>, tensor<i32>) -> tensor<5x2x4xf32>, res_attrs = [{}], sym_name = "dynamic_update_index_in_dim", sym_visibility = "private"}> ({
  ^bb0(%arg30: tensor<5x2x4xf32>, %arg31: tensor<2x4xf32>, %arg32: tensor<i32>):
    %44 = "stablehlo.broadcast_in_dim"(%arg31) <{broadcast_dimensions = array<i64: 1, 2>}> : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
    %45 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %46 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %47 = "stablehlo.dynamic_update_slice"(%arg30, %44, %arg32, %45, %46) : (tensor<5x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<5x2x4xf32>
    "func.return"(%47) : (tensor<5x2x4xf32>) -> ()
  }) : () -> ()
  "func.func"() <{arg_attrs = [{}, {}, {}], function_type = (tensor<5x2x7xf32>, tensor<2x7xf32>, tensor<i32>) -> tensor<5x2x7xf32>, res_attrs = [{}], sym_name = "dynamic_update_index_in_dim_0", sym_visibility = "private"}> ({
  ^bb0(%arg27: tensor<5x2x7xf32>, %arg28: tensor<2x7xf32>, %arg29: tensor<i32>):
    %40 = "stablehlo.broadcast_in_dim"(%arg28) <{broadcast_dimensions = array<i64: 1, 2>}> : (tensor<2x7xf32>) -> tensor<1x2x7xf32>
    %41 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %42 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %43 = "stablehlo.dynamic_update_slice"(%arg27, %40, %arg29, %41, %42) : (tensor<5x2x7xf32>, tensor<1x2x7xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<5x2x7xf32>
    "func.return"(%43) : (tensor<5x2x7xf32>) -> ()
  }) : () -> ()
  "func.func"() <{arg_attrs = [{}, {}], function_type = (tensor<5x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>, res_attrs = [{}], sym_name = "dynamic_index_in_dim_1", sym_visibility = "private"}> ({
  ^bb0(%arg25: tensor<5x2x4xf32>, %arg26: tensor<i32>):
    %36 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %37 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %38 = "stablehlo.dynamic_slice"(%arg25, %arg26, %36, %37) <{slice_sizes = array<i64: 1, 2, 4>}> : (tensor<5x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
    %39 = "stablehlo.reshape"(%38) : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
    "func.return"(%39) : (tensor<2x4xf32>) -> ()
  }) : () -> ()
  "func.func"() <{arg_attrs = [{}, {}], function_type = (tensor<5x2x7xf32>, tensor<i32>) -> tensor<2x7xf32>, res_attrs = [{}], sym_name = "dynamic_index_in_dim_2", sym_visibility = "private"}> ({
  ^bb0(%arg23: tensor<5x2x7xf32>, %arg24: tensor<i32>):
    %32 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %33 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %34 = "stablehlo.dynamic_slice"(%arg23, %arg24, %32, %33) <{slice_sizes = array<i64: 1, 2, 7>}> : (tensor<5x2x7xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x7xf32>
    %35 = "stablehlo.reshape"(%34) : (tensor<1x2x7xf32>) -> tensor<2x7xf32>
    "func.return"(%35) : (tensor<2x7xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<2x3xf32>, tensor<7x16xf32>, tensor<7x16xf32>, tensor<16xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x7xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<7x16xf32>, tensor<16xf32>, tensor<2x4xf32>, tensor<2x4xf32>), res_attrs = [{}, {}, {}, {}], sym_name = "closed_call_3", sym_visibility = "private"}> ({
  ^bb0(%arg0: tensor<2x3xf32>, %arg1: tensor<7x16xf32>, %arg2: tensor<7x16xf32>, %arg3: tensor<16xf32>, %arg4: tensor<2x4xf32>, %arg5: tensor<2x4xf32>, %arg6: tensor<2x4xf32>, %arg7: tensor<2x7xf32>, %arg8: tensor<2x4xf32>, %arg9: tensor<2x4xf32>, %arg10: tensor<2x4xf32>, %arg11: tensor<2x4xf32>, %arg12: tensor<2x4xf32>, %arg13: tensor<2x4xf32>, %arg14: tensor<2x4xf32>, %arg15: tensor<2x4xf32>, %arg16: tensor<2x4xf32>, %arg17: tensor<2x4xf32>, %arg18: tensor<2x4xf32>):
    %0 = "stablehlo.add"(%arg4, %arg6) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %1 = "stablehlo.multiply"(%arg18, %0) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %2 = "stablehlo.multiply"(%0, %arg16) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %3 = "stablehlo.multiply"(%1, %arg17) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %4 = "stablehlo.add"(%arg5, %3) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %5 = "stablehlo.multiply"(%3, %arg16) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %6 = "stablehlo.add"(%4, %5) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %7 = "stablehlo.multiply"(%2, %arg15) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %8 = "stablehlo.multiply"(%arg14, %6) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %9 = "stablehlo.multiply"(%6, %arg12) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %10 = "stablehlo.multiply"(%8, %arg13) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %11 = "stablehlo.multiply"(%10, %arg12) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %12 = "stablehlo.add"(%10, %11) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %13 = "stablehlo.multiply"(%9, %arg11) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %14 = "stablehlo.multiply"(%arg10, %6) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %15 = "stablehlo.multiply"(%6, %arg9) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %16 = "stablehlo.multiply"(%15, %arg8) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %17 = "stablehlo.concatenate"(%13, %16, %12, %7) <{dimension = 1 : i64}> : (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x16xf32>
    %18 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %19 = "stablehlo.reduce"(%17, %18) <{dimensions = array<i64: 0>}> ({
    ^bb0(%arg21: tensor<f32>, %arg22: tensor<f32>):
      %31 = "stablehlo.add"(%arg21, %arg22) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%31) : (tensor<f32>) -> ()
    }) : (tensor<2x16xf32>, tensor<f32>) -> tensor<16xf32>
    %20 = "stablehlo.reshape"(%19) : (tensor<16xf32>) -> tensor<1x16xf32>
    %21 = "stablehlo.constant"() <{value = dense<0.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %22 = "stablehlo.reduce"(%20, %21) <{dimensions = array<i64: 0>}> ({
    ^bb0(%arg19: tensor<f32>, %arg20: tensor<f32>):
      %30 = "stablehlo.add"(%arg19, %arg20) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%30) : (tensor<f32>) -> ()
    }) : (tensor<1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %23 = "stablehlo.add"(%arg3, %22) : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %24 = "stablehlo.dot_general"(%17, %arg7) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}> : (tensor<2x16xf32>, tensor<2x7xf32>) -> tensor<16x7xf32>
    %25 = "stablehlo.transpose"(%24) <{permutation = array<i64: 1, 0>}> : (tensor<16x7xf32>) -> tensor<7x16xf32>
    %26 = "stablehlo.add"(%arg2, %25) : (tensor<7x16xf32>, tensor<7x16xf32>) -> tensor<7x16xf32>
    %27 = "stablehlo.dot_general"(%17, %arg1) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}> : (tensor<2x16xf32>, tensor<7x16xf32>) -> tensor<2x7xf32>
    %28 = "stablehlo.slice"(%27) <{limit_indices = array<i64: 2, 3>, start_indices = array<i64: 0, 0>, strides = array<i64: 1, 1>}> : (tensor<2x7xf32>) -> tensor<2x3xf32>
    %29 = "stablehlo.slice"(%27) <{limit_indices = array<i64: 2, 7>, start_indices = array<i64: 0, 3>, strides = array<i64: 1, 1>}> : (tensor<2x7xf32>) -> tensor<2x4xf32>
    "func.return"(%26, %23, %29, %14) : (tensor<7x16xf32>, tensor<16xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> ()
  }) : () -> ()
}) {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} : () -> ()
