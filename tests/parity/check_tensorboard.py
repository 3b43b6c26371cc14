"""Does TensorBoard show the event files that Lockstep wrote, with the HPARAMS tab?

    python check_tensorboard.py DIR

DIR is a folder of runs, as out/clm/runs. The script reads it as TensorBoard's server does: scalars and texts by its
EventMultiplexer, hyperparameters and their metrics by the hparams plugin's own request handlers. It prints what it found
and "ok", or fails.
"""

import logging
import sys

from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

logging.getLogger("tensorboard").setLevel(logging.ERROR)
multiplexer = plugin_event_multiplexer.EventMultiplexer()
multiplexer.AddRunsFromDirectory(sys.argv[1])
multiplexer.Reload()
provider = data_provider.MultiplexerDataProvider(multiplexer, sys.argv[1])
context = base_plugin.TBContext(data_provider=provider, logdir=sys.argv[1], multiplexer=multiplexer)
request, hparams = RequestContext(), backend_context.Context(context)

runs = multiplexer.Runs()
if not runs:
    sys.exit("no runs")
for run, kinds in runs.items():
    scalars = provider.list_scalars(request, experiment_id="", plugin_name="scalars")[run]
    memory = [tag for tag in scalars if tag.startswith("memory/")]
    print(f"run {run}: {len(scalars)} scalars, of memory {memory}")
    if "train/loss" not in scalars:
        sys.exit("there is no train/loss")
    if any(not tag.endswith("_mib") for tag in memory) or any("mem" in tag for tag in scalars if tag not in memory):
        sys.exit("memory without its unit")

metadata = hparams.hparams_metadata(request, "")
data = hparams.hparams_from_data_provider(request, "", limit=None)
experiment = get_experiment.Handler(
    request, hparams, "", api_pb2.GetExperimentRequest(include_metrics=True)
).run()
names = [info.name for info in experiment.hparam_infos]
tags = [info.name.tag for info in experiment.metric_infos]
print(f"{len(names)} hyperparameters, the first {names[:8]}; metrics {tags}")
columns = [api_pb2.ColParams(metric=info.name, include_in_result=True) for info in experiment.metric_infos]
columns += [api_pb2.ColParams(hparam=name, include_in_result=True) for name in names]
groups = list_session_groups.Handler(
    request,
    hparams,
    "",
    api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=100,
        include_metrics=True,
        col_params=columns,
        allowed_statuses=[api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_RUNNING, api_pb2.STATUS_UNKNOWN],
    ),
).run()
if len(groups.session_groups) != len(runs):
    sys.exit(f"{len(groups.session_groups)} rows of the table, want {len(runs)}")
for group in groups.session_groups:
    session = group.sessions[0]
    values = {m.name.tag: round(m.value, 4) for m in session.metric_values}
    print(f"row {group.name}: {api_pb2.Status.Name(session.status)}, {session.end_time_secs - session.start_time_secs:.1f} s, "
          f"learning_rate {group.hparams['learning_rate'].number_value}, {values}")
    if len(group.hparams) != len(names):
        sys.exit(f"{len(group.hparams)} values of hyperparameters, want {len(names)}")
    if "train/loss" not in values or not session.end_time_secs > session.start_time_secs > 0:
        sys.exit("there is no loss, or no time")
print("ok")
