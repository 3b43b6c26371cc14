// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"fmt"
	"strings"
)

// accelerateAlike are keys of accelerate's configuration file that share a rule.
var accelerateAlike = []alike{
	{only("the run is not on a TPU"), "", "tpu_name tpu_zone tpu_vm"},
	{only("the run is not on a TPU", false), "", "tpu_use_cluster tpu_use_sudo"},
	{only("the program is named on the command line"), "", "command_file commands"},
	{setsNVMe, "deepspeed_config.", "offload_optimizer_nvme_path offload_param_nvme_path"},
	{ignore("lockstep launch runs on each host"), "deepspeed_config.", `
		deepspeed_multinode_launcher deepspeed_hostfile deepspeed_inclusion_filter deepspeed_exclusion_filter`},
}

// accelerateRules are the keys of accelerate's configuration file, as `accelerate config` writes it.
var accelerateRules = withFSDP(withParallelism(withAlike(accelerateAlike, map[string]rule{
	"compute_environment":         only("ranks run on the hosts of lockstep launch", "LOCAL_MACHINE"),
	"distributed_type":            setsDistribution,
	"mixed_precision":             setsPrecision,
	"num_processes":               launches("num_processes"),
	"num_machines":                launches("nnodes"),
	"machine_rank":                launches("node_rank"),
	"main_process_ip":             launches("master_addr"),
	"main_process_port":           launches("master_port"),
	"rdzv_backend":                launches("rdzv_backend"),
	"max_restarts":                launches("max_restarts"),
	"gradient_accumulation_steps": sets("gradient_accumulation_steps", nil),
	"same_network":                ignore("hosts are found at main_process_ip"),
	"use_cpu":                     setsCPU,
	"gpu_ids":                     ignore("device decides"),
	"debug":                       ignore("collective calls are always checked"),
	"main_training_function":      ignore("the program begins at its main"),
	"enable_cpu_affinity":         ignore("the system places threads"),
	"num_cpu_threads_per_process": ignore("the cores of a host are divided among its ranks"),
	"downcast_bf16":               only("it is a mode of TPUs", "no", false),
	"tpu_env":                     ignore("the run is not on a TPU"),
	"dynamo_config":               ignore("there is nothing to compile"),
	"ipex_config":                 ignore("kernels are Lockstep's own"),
	"mpirun_config":               ignore("mpirun starts the program itself"),
	"megatron_lm_config":          only("tensors and layers are not split over ranks", map[string]any{}),
	"fp8_config":                  only("float8 is not built", map[string]any{}),

	"deepspeed_config.deepspeed_config_file":         sets("deepspeed", nil),
	"deepspeed_config.zero_stage":                    sets("zero_stage", nil),
	"deepspeed_config.gradient_accumulation_steps":   sets("gradient_accumulation_steps", nil),
	"deepspeed_config.gradient_clipping":             sets("max_grad_norm", nil),
	"deepspeed_config.offload_optimizer_device":      sets("offload_optimizer", offloadDevice),
	"deepspeed_config.offload_param_device":          sets("offload_params", offloadDevice),
	"deepspeed_config.zero3_init_flag":               ignore("making a model changes no result"),
	"deepspeed_config.zero3_save_16bit_model":        ignore("saved models are whole"),
	"deepspeed_config.deepspeed_moe_layer_cls_names": only("units are the model's blocks", ""),
}), "parallelism_config."), "fsdp_config.")

// Accelerate reads accelerate's file.
func Accelerate(doc map[string]any) *Config {
	c := &Config{Tool: "accelerate", Launch: map[string]string{}}
	kind, named := doc["distributed_type"].(string)
	for section, owner := range map[string]string{"deepspeed_config.": "DEEPSPEED", "fsdp_config.": "FSDP",
		"megatron_lm_config": "MEGATRON_LM"} {
		if named && !strings.EqualFold(kind, owner) {
			c.without(section, "distributed_type is "+kind)
		}
	}
	if precision, _ := doc["mixed_precision"].(string); precision != "fp8" {
		c.without("fp8_config", "mixed_precision is not fp8")
	}
	c.wrapPolicy(inside(doc, "fsdp_config"), "fsdp_config.")
	c.walk(accelerateRules, "", doc)
	if section := inside(doc, "deepspeed_config"); strings.EqualFold(kind, "DEEPSPEED") &&
		section["gradient_clipping"] == nil && section["deepspeed_config_file"] == nil {
		c.absent("max_grad_norm", 0, "deepspeed_config.gradient_clipping")
	}
	if strings.EqualFold(kind, "DEEPSPEED") && inside(doc, "deepspeed_config")["deepspeed_config_file"] == nil {
		for setting, value := range map[string]any{"fp16_growth_interval": 1000, "fp16_hysteresis": 2,
			"fp16_loss_scaler": "deepspeed"} {
			c.implies(setting, value, "distributed_type", "fp16")
		}
	}
	c.strategy(kind)
	c.processes()
	return c
}

// strategy is accelerate's own where no key says which: FULL_SHARD, and stage 2.
func (c *Config) strategy(kind string) {
	for _, s := range c.Settings {
		if s.Key == "fsdp" || s.Key == "zero_stage" || s.Key == "deepspeed" {
			return
		}
	}
	switch strings.ToUpper(kind) {
	case "FSDP":
		c.set("fsdp", []string{"full_shard"}, "distributed_type")
	case "DEEPSPEED":
		c.set("zero_stage", 2, "distributed_type")
	}
}

// processes divides the processes among the hosts.
func (c *Config) processes() {
	all, hosts := c.Launch["num_processes"], c.Launch["nnodes"]
	delete(c.Launch, "num_processes")
	var n, m int
	if _, err := fmt.Sscan(all, &n); err != nil {
		return
	}
	if _, err := fmt.Sscan(hosts, &m); err != nil || m == 0 {
		m = 1
	}
	if n%m != 0 {
		c.add("num_processes", n, Refused, fmt.Sprintf("a multiple of num_machines (%d)", m))
		return
	}
	c.Launch["nproc_per_node"] = fmt.Sprint(n / m)
}

// launches is the rule of a key that is a flag of lockstep launch.
func launches(flag string) rule {
	return func(c *Config, _ string, v any) (Use, string) {
		if v == nil {
			return NoEffect, "it is empty"
		}
		c.Launch[flag] = fmt.Sprint(v)
		if flag == "num_processes" {
			return Used, "launch --nproc_per_node on each host"
		}
		return Used, fmt.Sprintf("launch --%s %v", flag, v)
	}
}

func setsDistribution(_ *Config, _ string, v any) (Use, string) {
	switch s := strings.ToUpper(fmt.Sprint(v)); {
	case s == "FSDP":
		return Used, "fsdp, as fsdp_config says"
	case s == "DEEPSPEED":
		return Used, "zero_stage, as deepspeed_config says"
	case s == "NO", strings.HasPrefix(s, "MULTI_"):
		return NoEffect, "device and the number of ranks decide"
	}
	return Refused, "NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED"
}

func setsPrecision(c *Config, key string, v any) (Use, string) {
	switch s := fmt.Sprint(v); s {
	case "no", "<nil>", "false":
		return NoEffect, "bf16 and fp16 decide"
	case "bf16", "fp16":
		return c.set(s, true, key)
	}
	return Refused, "no, fp16 or bf16"
}

func setsCPU(c *Config, key string, v any) (Use, string) {
	if sameValue(v, "true") || v == true {
		return c.set("device", "cpu", key)
	}
	return NoEffect, "device decides"
}
